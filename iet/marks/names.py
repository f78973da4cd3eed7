"""Names of agents and ids of sessions: what they may hold, and which names people would take for others."""

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
"""What reports say in the place of an agent, in any case; beside these, "decoy" and a number."""

_TABLE = pathlib.Path(__file__).with_name("confusables.txt")

# Code points without a look of their own (Default_Ignorable_Code_Point of Unicode 17), and the braille blank.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


def checked_name(name: object) -> str:
    """Return a name that a registry can hold, or raise an InputError that says what is wrong with it.

    Registries of earlier releases hold names that `new_name` refuses: they are read, and marked with.
    """
    if not isinstance(name, str):
        raise InputError(f"agent name: got {type(name).__name__}, expected str")
    if not 1 <= len(name) <= MAX_NAME or name != name.strip():
        raise InputError(
            f"agent name: got {name!r:.80}, expected 1 to {MAX_NAME} characters without spaces at the ends"
        )
    for character in name:
        if (
            unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
            and character not in "\u200c\u200d"
        ):
            raise _invisible(character)
    return name


def checked_session(session: object) -> str:
    """Return the id of a session, or raise an InputError that says what is wrong with it.

    It is hashed as it is: another case, or another form of Unicode, is another session.
    """
    if not isinstance(session, str):
        raise InputError(f"session: got {type(session).__name__}, expected str")
    if not 1 <= len(session) <= MAX_SESSION or session != session.strip():
        raise InputError(
            f"session: got {session[:60]!a}, expected 1 to {MAX_SESSION} characters, no space at either end"
        )
    for character in session:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            raise InputError(
                f"session: got the control or invisible character U+{ord(character):04X}, expected none"
            )
    return session


def new_name(name: object, looks: Mapping[str, str]) -> str:
    """Return the name of a new agent in NFC, or raise what speaks against it: it has to tell agents apart.

    Args:
        name: 1 to `MAX_NAME` characters. None of them is invisible (joiners, fillers, variation selectors,
            controls), a space other than U+0020, or a mark that would sit on what stands before the name.
        looks: names that it must not be taken for, by their skeleton.

    Raises:
        InputError: no such name, or one that reports use for something else.
        RegistryError: it looks like one of those.
    """
    if isinstance(name, str):
        name = unicodedata.normalize("NFC", name)
    name = checked_name(name)
    for character in name:
        if _INVISIBLE.match(character):
            raise _invisible(character)
        if character != " " and unicodedata.category(character) == "Zs":
            raise InputError(f"agent name: got the space U+{ord(character):04X}, expected none but U+0020")
    if unicodedata.category(name[0]).startswith("M"):
        raise InputError(
            f"agent name: got {name!a:.80}, which begins with a mark; expected a letter before it"
        )
    look = skeleton(name.casefold())
    if look in _reserved() or re.fullmatch(f"{skeleton('decoy')} +[{_digits()}]+", look):
        raise InputError(f"agent name: got {name!a:.80}, which reports use for something else")
    other = looks.get(skeleton(name), name)
    if other != name:
        raise RegistryError(
            f"agent name: got {name!a}, which looks like {other!a}, an agent that is here already"
        )
    return name


@functools.lru_cache(maxsize=1 << 16)
def skeleton(name: str) -> str:
    """Return what is alike for names that look alike: the skeleton of Unicode's UTS #39, section 4.

    It is taken of itself until nothing changes, as a few prototypes have one of their own, and spaces count
    once, as where a page shows them. The table is that of Unicode 17.0; which of the newest characters
    decompose is up to the Python at hand.
    """
    found, last = unicodedata.normalize("NFD", name), None
    while found != last:
        last = found
        found = unicodedata.normalize("NFD", _INVISIBLE.sub("", found).translate(_prototypes()))
        found = re.sub(" +", " ", found)
    return found


@functools.cache
def _prototypes() -> dict[int, str]:
    found = dict[int, str]()
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            prototype, _, sources = line.partition(";")
            text = "".join(chr(int(point, 16)) for point in prototype.split())
            found |= {int(point, 16): text for point in sources.split()}
    return found


@functools.cache
def _reserved() -> frozenset[str]:
    return frozenset(map(skeleton, RESERVED))


@functools.cache
def _digits() -> str:
    return re.escape("".join(skeleton(digit) for digit in "0123456789").casefold() + "O")


def _invisible(character: str) -> InputError:
    return InputError(
        f"agent name: got the control or invisible character U+{ord(character):04X}, expected none"
    )
