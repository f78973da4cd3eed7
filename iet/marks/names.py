"""Names of agents and ids of sessions: which characters are valid, and which names look alike."""

from __future__ import annotations

import functools
import pathlib
import re
import unicodedata
from collections.abc import Mapping

from iet.errors import InputError, RegistryError

MAX_NAME = 200
"""Maximum number of characters of an agent's name."""

MAX_SESSION = 200
"""Maximum number of characters of a session's id."""

RESERVED = ("unattributed", "nobody", "none", "unmarked", "left out", "quoted", "?")
"""Words that reports print instead of an agent's name, in any case; also "decoy" with a number."""

_TABLE = pathlib.Path(__file__).with_name("confusables.txt")

# Invisible code points (Default_Ignorable_Code_Point of Unicode 17), and the braille blank.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def checked_name(name: object) -> str:
    """Return the name if a registry can hold it, or raise an InputError.

    Registries of earlier releases may hold names that `new_name` refuses; those can still be read and used.
    """
    if not isinstance(name, str):
        raise InputError(f"agent name: got {type(name).__name__}, expected str")
    if not 1 <= len(name) <= MAX_NAME or name != name.strip():
        raise InputError(
            f"agent name: got {name!r:.80}, expected 1 to {MAX_NAME} characters without spaces at the ends"
        )
    _check_visible("agent name", name, allowed="\u200c\u200d")
    return name


def checked_session(session: object) -> str:
    """Return the id of a session if it is valid, or raise an InputError.

    It is hashed without normalisation: another case or Unicode form is another session.
    """
    if not isinstance(session, str):
        raise InputError(f"session: got {type(session).__name__}, expected str")
    if not 1 <= len(session) <= MAX_SESSION or session != session.strip():
        raise InputError(
            f"session: got {session[:60]!a}, expected 1 to {MAX_SESSION} characters, no space at either end"
        )
    _check_visible("session", session)
    return session


def new_name(name: object, skeletons: Mapping[str, str]) -> str:
    """Return the name of a new agent in NFC, or raise an error if readers could confuse it with another.

    Args:
        name: 1 to `MAX_NAME` characters. Invisible characters (joiners, fillers, variation selectors,
            controls), spaces other than U+0020 and a combining mark at the start are not allowed.
        skeletons: `skeleton` -> name, for the names that it must not look like.

    Raises:
        InputError: the name is invalid, or reports use it for something else.
        RegistryError: it looks like one of the other names.
    """
    if isinstance(name, str):
        name = unicodedata.normalize("NFC", name)
    name = checked_name(name)
    for character in name:
        if _INVISIBLE.match(character):
            raise _invisible("agent name", character)
        if character != " " and unicodedata.category(character) == "Zs":
            raise InputError(f"agent name: got the space U+{ord(character):04X}, expected none but U+0020")
    if unicodedata.category(name[0]).startswith("M"):
        raise InputError(
            f"agent name: got {name!a:.80}, which begins with a mark; expected a letter before it"
        )
    folded = skeleton(name.casefold())
    if _reserved().fullmatch(folded):
        raise InputError(f"agent name: got {name!a:.80}, which reports use for something else")
    similar = skeletons.get(skeleton(name), name)
    if similar != name:
        raise RegistryError(f"agent name: got {name!a}, which looks like {similar!a}, an existing agent")
    return name


@functools.lru_cache(maxsize=1 << 16)
def skeleton(name: str) -> str:
    """Return a string that is equal for names that look alike: the skeleton of Unicode's UTS #39, section 4.

    The mapping is repeated until nothing changes, because a few prototypes map to others, and runs of spaces
    count as one, as in HTML. The table is that of Unicode 17.0; the running Python's Unicode version decides
    which of the newest characters decompose.
    """
    mapped, previous = unicodedata.normalize("NFD", name), None
    while mapped != previous:
        previous = mapped
        mapped = unicodedata.normalize("NFD", _INVISIBLE.sub("", mapped).translate(_prototypes()))
        mapped = re.sub(" +", " ", mapped)
    return mapped


@functools.cache
def _prototypes() -> dict[int, str]:
    prototypes = dict[int, str]()
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            prototype, _, sources = line.partition(";")
            text = "".join(chr(int(point, 16)) for point in prototype.split())
            prototypes |= {int(point, 16): text for point in sources.split()}
    return prototypes


@functools.cache
def _reserved() -> re.Pattern[str]:
    digits = re.escape("".join(map(skeleton, "0123456789")).casefold() + "O")
    words = "|".join(re.escape(skeleton(word)) for word in RESERVED)
    return re.compile(f"{words}|{skeleton('decoy')} +[{digits}]+")


def _check_visible(subject: str, text: str, allowed: str = "") -> None:
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in allowed:
            raise _invisible(subject, character)


def _invisible(subject: str, character: str) -> InputError:
    return InputError(
        f"{subject}: got the control or invisible character U+{ord(character):04X}, expected none"
    )
