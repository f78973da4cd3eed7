"""An index of published text: keyed hashes of the (context, token) pairs that readers may have seen.

An index is a folder with `index.json` and runs of sorted hashes (`iet.marks.runs`). Runs are written once,
and `index.json`, which names them, is replaced last. So a writer that is killed leaves the old index or the
new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from iet.errors import InputError, RegistryError, check_path
from iet.marks.commitment import commitment
from iet.marks.derivation import derive_index_key
from iet.marks.files import alone_in, write_file
from iet.marks.keys import Keys, KeyTable, Secret
from iet.marks.registry import Registry
from iet.marks.runs import Hashes, Run
from iet.marks.scheme import canonical_digest
from iet.native.arrays import Bools, Int64s
from iet.native.host import check_token_ids

FORMAT = "iet.published/1"
"""First field of `index.json`."""

MAX_TEXTS = (1 << 32) - 1

BATCH_TEXTS, BATCH_SIZE = 4096, 1 << 24
"""A batch ends at this number of texts, or when it has this number of characters (or ids)."""

MANIFEST = "index.json"
"""The file that lists the runs of an index."""

_RUN = re.compile(r"[0-9a-f]{16}\.run")
_NONE = -1


@dataclasses.dataclass(frozen=True)
class Added:
    """The result of an addition.

    Attributes:
        texts: number of new texts.
        known: number of texts that the index had already, which change nothing.
        pairs: number of pairs that had not been published before.
    """

    texts: int
    known: int
    pairs: int


class PublishedIndex:
    """The (context, token) pairs of the texts that agents have published, as keyed hashes in a folder.

    A forger who collects published text learns which pairs score high, and can build a text from them that
    is attributed to the agent. So a pair that was published before is no evidence for a later text:
    `Auditor(published=)`. A text in the index keeps the evidence of the pairs that it published first.

    An object shows the index as it was when the object was made, refreshed, or used to change the index.

    Args:
        path: the folder.
        registry: the agents' registry. The hashes are keyed with a secret that is derived from the first key
            of its first agent when the index is made; every registry that opens the index needs that key.
        create: make the folder if it does not exist.

    Raises:
        InputError: the index is missing, damaged, or of another release.
        RegistryError: the registry has no agent, or lacks the key of the index.

    State: 12 bytes on disk for each distinct pair and each text. A lookup takes O(log² N) steps for N pairs.
    The probability that an absent pair is reported as present is N / 2^64, 5e-11 for 10^9 pairs.
    """

    def __init__(self, path: str | os.PathLike[str], registry: Registry, *, create: bool = False) -> None:
        if not isinstance(registry, Registry):
            raise InputError(f"registry: got {type(registry).__name__}, expected iet.Registry")
        check_path("path", path)
        self._path = pathlib.Path(os.path.realpath(path))
        self._registry, self._threads = registry, threading.Lock()
        self._excluded = frozenset[int]()
        self._runs: tuple[Run, ...] = ()
        if create and not (self._path / MANIFEST).exists():
            self._create()
        self._content = self._read()
        self._key = self._find_key()

    @property
    def path(self) -> pathlib.Path:
        """The folder."""
        return self._path

    @property
    def registry(self) -> Registry:
        """The registry of the agents whose texts are in the index."""
        return self._registry

    @property
    def profiles(self) -> frozenset[str]:
        """Digests of the registry's profiles; the index can hold pairs of each."""
        return frozenset(profile.digest for profile in self._registry.profiles.values())

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of the content of the index."""
        return str(self._content["checksum"])

    @property
    def agents(self) -> Mapping[str, Mapping[str, int]]:
        """Agent -> its number of `texts`, and of the `pairs` that it published first."""
        return {name: dict(counts) for name, counts in self._content["agents"].items()}

    @property
    def texts(self) -> int:
        """Number of texts."""
        return int(self._content["texts"])

    def __len__(self) -> int:
        """Number of pairs and texts."""
        return sum(map(len, self._runs))

    def __repr__(self) -> str:
        return f"PublishedIndex({str(self._path)!r}, {self.texts:,} texts)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (str(self._path), self._registry, self._excluded)

    def add(
        self,
        agent: str,
        texts: str | Iterable[str] = (),
        *,
        token_ids: Iterable[ArrayLike] = (),
        tokenizer: Any = None,
    ) -> Added:
        """Add texts that an agent published, in this order. Adding a text again changes nothing.

        Each batch of a few thousand texts is added atomically. Processes and threads take turns if the file
        system has locks (Windows and some network file systems have none: add from one process there).

        Args:
            agent: its name in the registry.
            texts: one text or many, each written by this agent only.
            token_ids: the ids [T] of each text, instead of `texts`.
            tokenizer: path or object, if the path in the registry is not valid here.

        Returns:
            The numbers of texts and pairs.

        Raises:
            InputError: a text or an id is invalid, or the folder cannot be written.
            RegistryError: the agent is unknown.
            TokenizerMismatch: there is no tokenizer with the profile's digest.

        Cost: O(T·log² N). Because runs are merged as they grow, O(log N) bytes are written for each new byte.
        """
        profile = self._registry.profile_of(agent)
        name, keys = self._registry.keys(agent)[0].agent, self._registry.scoring_keys(profile.id)
        if isinstance(texts, str):
            texts = [texts]
        for argument, value in (("texts", texts), ("token_ids", token_ids)):
            if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
                raise InputError(f"{argument}: got {type(value).__name__}, expected a list")
        added = []
        for batch in _batches(map(_text, texts)):
            opened = self._registry.open_tokenizer(profile.id, tokenizer)
            encoded = [encoding.token_ids for encoding in opened.encode_batch(batch)]
            added.append(self._add(name, keys, encoded, batch))
        for ids in _batches(map(check_token_ids, token_ids)):
            added.append(self._add(name, keys, ids, None))
        return Added(*(sum(getattr(a, field) for a in added) for field in ("texts", "known", "pairs")))

    def refresh(self) -> None:
        """Read the texts that other processes have added since."""
        with self._threads:
            self._content = self._read()

    def check(self) -> None:
        """Raise an InputError that names the file unless all files have their digests. O(N)."""
        for run in self._runs:
            run.check()

    def seen(self, token_ids: ArrayLike, keys: Keys, text: str | None = None) -> Bools:
        """Return which positions [T] of a text hold a pair that was published before.

        Pairs that this same text published first are not among them. The text is recognised by its
        characters, except for white space at its ends, or by its ids.

        Args:
            token_ids: [T].
            keys: of one profile; an index holds no pairs of foreign keys.
            text: the text of the ids, if it is known.
        """
        ids = check_token_ids(token_ids)
        if not isinstance(keys, KeyTable) or not self._runs:
            return np.zeros(len(ids), np.bool_)
        names = [_name_of(self._key, keys, value) for value in (text, ids)]
        runs = self._runs  # once: another thread may `refresh`
        own = _numbers_of(runs, np.array(names, np.uint64))
        numbers = _numbers_of(runs, keys.pair_hashes(ids, self._key))
        unseen = np.array([_NONE, *own.tolist(), *self._excluded], np.int64)
        return ~np.isin(numbers, unseen)

    def excluding(self, texts: Sequence[str]) -> PublishedIndex:
        """Return the index without the pairs that these texts published first.

        For a text that consists of texts in the index, such as a conversation of responses: pairs that the
        responses published first are evidence in the conversation.

        Args:
            texts: equal to texts in the index.

        Raises:
            InputError: a text is not in the index.
        """
        tables = [self._registry.scoring_keys(id) for id in self._registry.profiles]
        numbers = set(self._excluded)
        for i, text in enumerate([texts] if isinstance(texts, str) else texts):
            names = np.array([_name_of(self._key, keys, text) for keys in tables], np.uint64)
            matches = _numbers_of(self._runs, names)
            if not (matches >= 0).any():
                raise InputError(f"texts: number {i} is not in the index, expected texts that were added")
            numbers |= {*matches[matches >= 0].tolist()}
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, _threads=threading.Lock(), _excluded=frozenset(numbers))
        return view

    def _add(self, agent: str, keys: KeyTable, ids: Sequence[Int64s], texts: Sequence[str] | None) -> Added:
        hashed = [keys.pair_hashes(text_ids, self._key) for text_ids in ids]
        names = np.array(
            [[_name_of(self._key, keys, text_ids) for text_ids in ids]]
            + ([] if texts is None else [[_name_of(self._key, keys, text) for text in texts]]),
            np.uint64,
        )
        try:
            with self._threads, alone_in(self._path):
                self._content = self._read()
                self._sweep()
                return self._write(agent, hashed, names)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written ({error.strerror or error})") from error

    def _write(self, agent: str, hashed: Sequence[Hashes], names: Hashes) -> Added:
        """Add texts; `hashed` has the pair hashes of each, `names` the name hashes in one or two rows."""
        known = (_numbers_of(self._runs, names[-1]) >= 0) | _are_repeats(names[-1])
        new = np.flatnonzero(~known).tolist()
        if not new:
            return Added(0, len(known), 0)
        first = self.texts
        if first + len(new) > MAX_TEXTS:
            raise InputError(f"{self._path}: holds {first:,} texts, expected at most {MAX_TEXTS:,}")
        parts = [np.append(hashed[i][hashed[i] > 0], names[:, i]) for i in new]
        numbers = np.repeat(np.arange(first, first + len(new)), [len(part) for part in parts])
        hashes, first_at = np.unique(np.concatenate(parts), return_index=True)
        fresh = _numbers_of(self._runs, hashes) < 0
        part = hashes[fresh], numbers[first_at[fresh]].astype(np.uint32)
        pairs = int(fresh.sum() - np.isin(part[0], names[:, new]).sum())
        merged, runs = [part], list(self._runs)
        while runs and len(runs[-1]) <= 2 * sum(len(hashes) for hashes, _ in merged):
            last = runs.pop()
            merged.append((last.hashes, last.numbers))
        runs.append(Run.write(self._path / f"{os.urandom(8).hex()}.run", merged))
        counts = self._content["agents"].get(agent, {"texts": 0, "pairs": 0})
        counts = {"texts": counts["texts"] + len(new), "pairs": counts["pairs"] + pairs}
        content = {
            **self._content,
            "agents": {**self._content["agents"], agent: counts},
            "texts": first + len(new),
            "runs": [{"name": run.path.name, "entries": len(run), "digest": run.digest} for run in runs],
        }
        self._content = self._save(content)
        self._runs = tuple(runs)
        self._sweep()
        return Added(len(new), len(known) - len(new), pairs)

    def _create(self) -> None:
        agent = next(iter(self._registry), None)
        if agent is None:
            raise RegistryError("the registry has no agents, expected one whose key an index is made under")
        key = self._registry.keys(agent)[0]
        try:
            self._path.mkdir(mode=0o700, exist_ok=True)
            with alone_in(self._path):
                if (self._path / MANIFEST).exists():
                    return
                if files := os.listdir(self._path):
                    lost = ", whose index.json is lost (take a backup)" if _RUN.fullmatch(files[0]) else ""
                    raise InputError(
                        f"{self._path}: holds {files[0]!r:.80}{lost}, expected an index, or a new or empty"
                        " folder"
                    )
                self._save(
                    {
                        "format": FORMAT,
                        "salt": os.urandom(16).hex(),
                        "key": {"agent": agent, "epoch": key.epoch, "commitment": commitment(key.secret)},
                        "agents": {},
                        "texts": 0,
                        "runs": [],
                    }
                )
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written ({error.strerror or error})") from error

    def _save(self, content: dict[str, Any]) -> dict[str, Any]:
        content = {name: value for name, value in content.items() if name != "checksum"}
        content["checksum"] = canonical_digest(content)
        data = json.dumps(content, indent=1, ensure_ascii=False).encode()
        write_file(self._path / MANIFEST, data, mode=0o600)
        return content

    def _read(self) -> dict[str, Any]:
        """Read the index and its runs from disk, and return the content of `index.json`."""
        path = self._path / MANIFEST
        while True:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise InputError(
                    f"{self._path}: no index of published text ({error.strerror or error}), expected one that"
                    " iet index add has made"
                ) from None
            content = _parsed(path, data)
            open_runs = {run.digest: run for run in self._runs}
            try:
                self._runs = tuple(
                    open_runs.get(run["digest"]) or Run.open(self._path / run["name"], run["digest"])
                    for run in content["runs"]
                )
                return content
            except InputError:
                with contextlib.suppress(OSError):
                    if path.read_bytes() != data:  # another process has merged runs
                        continue
                raise

    def _find_key(self) -> Secret:
        salt, wanted = bytes.fromhex(self._content["salt"]), self._content["key"]
        for name in self._registry:
            for key in self._registry.keys(name):
                if commitment(key.secret) == wanted["commitment"]:
                    return Secret(derive_index_key(key.secret, salt))
        raise RegistryError(
            f"{self._path}: made under the key of agent {wanted['agent']!r}, epoch {wanted['epoch']},"
            " expected a registry that holds it"
        )

    def _sweep(self) -> None:
        """Delete runs that are not in the index: merged ones, and those of writers that were killed."""
        named = {run.path.name for run in self._runs}
        for name in os.listdir(self._path):
            if _RUN.fullmatch(name) and name not in named:
                with contextlib.suppress(OSError):  # Windows deletes no file that is mapped
                    (self._path / name).unlink()


def _numbers_of(runs: Sequence[Run], hashes: Hashes) -> Int64s:
    """Return the number of the text that published each pair first; -1: unpublished."""
    numbers = np.full(len(hashes), _NONE, np.int64)
    for run in runs:
        numbers = np.maximum(numbers, run.numbers_of(hashes, _NONE))  # a hash is in one run at most
    return numbers


def _opened(path: str, registry: Registry, excluded: frozenset[int]) -> PublishedIndex:
    index = PublishedIndex(path, registry)
    index._excluded = excluded
    return index


def _parsed(path: pathlib.Path, data: bytes) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format"] != FORMAT:
            raise InputError(f"{path}: format {content['format']!r:.40}, but this release reads {FORMAT!r}")
        checksum = canonical_digest({name: value for name, value in content.items() if name != "checksum"})
        if content["checksum"] != checksum:
            raise ValueError
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path}: cut off, edited or damaged, expected what iet wrote") from None
    return content


def _name_of(key: bytes, keys: KeyTable, value: str | Int64s | None) -> int:
    """Return the hash of a text's characters, or of its ids; 0 for None."""
    if value is None:
        return 0
    if isinstance(value, str):
        data = b"text" + value.strip().encode(errors="surrogatepass")
    else:
        data = b"ids " + value.astype("<i8").tobytes()
    named = hashlib.blake2b(keys.profile.digest.encode() + data, digest_size=8, key=key)
    return max(1, int.from_bytes(named.digest(), "little"))


def _are_repeats(names: Hashes) -> Bools:
    repeats = np.ones(len(names), np.bool_)
    repeats[np.unique(names, return_index=True)[1]] = False
    return repeats


def _batches(values: Iterable[Any]) -> Iterator[list[Any]]:
    batch, size = list[Any](), 0
    for value in values:
        batch.append(value)
        size += len(value)
        if len(batch) == BATCH_TEXTS or size >= BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"texts: got {type(value).__name__} among them, expected str")
    return value
