"""Agents under keys of serving engines' own marks, read number for number.

    vllm-gumbel     vLLM's keyed Gumbel-max: Philox4x32-10 of (key, context, token)
    sglang-gumbel   SGLang's keyed Gumbel-max: MurmurHash3 of (key, context, token)
    kgw             the green lists of transformers' WatermarkingConfig
    synthid         the g-values of transformers' SynthIDTextWatermarkingConfig

Each is an entry of `SCHEMES`: its parameters, what a key is, its score and its null law. `EngineKeys` puts
agents under keys of one of them. docs/internals/foreign_marks.md has the equations and their sources.
Keys are secrets here: no repr, message or report shows one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iet.errors import IetError, InputError, RegistryError
from iet.marks.files import read_private
from iet.marks.foreign.keys import ForeignKeys, ForeignProfile, Ids, checked_integer
from iet.marks.foreign.kgw import Kgw
from iet.marks.foreign.scheme import EngineScheme, Mask
from iet.marks.foreign.sglang import SglangGumbel
from iet.marks.foreign.synthid import SynthId
from iet.marks.foreign.vllm import VllmGumbel, vllm_dual_keys
from iet.marks.names import checked_name
from iet.marks.scheme import MAX_VOCAB_SIZE, canonical_digest
from iet.marks.tokenizer import Tokenizer
from iet.native.texts import Texts

__all__ = ["SCHEMES", "EngineKeys", "EngineScheme", "vllm_dual_keys"]

SCHEMES: Mapping[str, type[EngineScheme]] = {
    scheme.name: scheme for scheme in (VllmGumbel, SglangGumbel, Kgw, SynthId)
}
"""Name -> what is read, with the defaults of its parameters."""


class EngineKeys(ForeignKeys):
    """Agents under the keys that a serving engine marked their text with.

    `score_tokens` and an `Auditor` take them as they take a `Registry`. They never change.

    >>> keys = EngineKeys("vllm-gumbel", {"planner": 42, "critic": 43})
    >>> keys
    EngineKeys(2 agents: planner, critic; vllm-gumbel, n 5, V 16777216)

    Args:
        scheme: a key of `iet.marks.foreign.engines.SCHEMES`.
        keys: agent -> key, or a list of keys of one agent. Of "vllm-gumbel" an integer from 0 to 2^64 - 1, of
            "sglang-gumbel" a str of 1 to 16 hex digits, of "kgw" the `hashing_key`, an integer from 1 to
            2^63 - 1, of "synthid" a list of `depth` integers from 0 to 2^63 - 1.
        tokenizer: anything that `iet.marks.tokenizer.Tokenizer` takes. None: only token ids can be audited.
        vocab_size: V, 2 to 2^24. Of "kgw" that of the model's config, on which its lists depend, and needed;
            of the others only a limit of what is scored. Default: that of the tokenizer with added tokens,
            else 2^24.
        **parameters: of the scheme, see its class there: n_gram, of "kgw" greenlist_ratio and seeding_scheme,
            of "synthid" depth, sampling_table_size, sampling_table_seed and weighted.

    Raises:
        InputError: no agents, two of them with one key or with keys that mark alike, an unknown scheme or
            parameter, or a value out of range.
        TokenizerMismatch: no tokenizer can be read there.
    """

    def __init__(
        self,
        scheme: str,
        keys: Mapping[str, Any],
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        **parameters: Any,
    ) -> None:
        self._take(scheme, keys, tokenizer, vocab_size, parameters, apart=True)

    def _take(
        self,
        scheme: str,
        keys: Mapping[str, Any],
        tokenizer: Any,
        vocab_size: int | None,
        parameters: Mapping[str, Any],
        *,
        apart: bool,
    ) -> None:
        """Do what `__init__` does; unless `apart`, take different keys that mark alike, too."""
        self.names: tuple[str, ...] = ()  # which a repr of what was refused shows
        self.scheme = _scheme(scheme, parameters, keys)
        if not isinstance(keys, Mapping) or not keys:
            got = "no agents" if isinstance(keys, Mapping) else f"a {type(keys).__name__}"
            raise InputError(f"keys: got {got}, expected agents and their keys, {{'planner': ...}}")
        read, owned = list[tuple[int, ...]](), dict[tuple[int, ...], tuple[tuple[int, ...], str]]()
        owners = []
        for place, (name, value) in enumerate(keys.items()):
            what = f"keys: key of {checked_name(name)!r}"
            several = value if self.scheme.is_list(value) else [value]
            if len(several) == 0:
                raise InputError(f"{what}: got an empty list, expected at least one")
            for key in several:
                numbers = self.scheme.checked_key(what, key)
                marking = self.scheme.effective_key(numbers) if apart else numbers
                same, other = owned.setdefault(marking, (numbers, name))
                if len(owned) == len(read):
                    got = "that" if same == numbers else "one that marks as that"
                    raise InputError(f"{what}: got {got} of {other!r}, expected one of its own")
                read.append(numbers)
                owners.append(place)
        opened = None if tokenizer is None else Tokenizer(tokenizer)
        if vocab_size is None:
            if self.scheme.name == "kgw":
                raise InputError(
                    "vocab_size: got none, expected that of the model's config: green lists depend on it"
                )
            vocab_size = (
                MAX_VOCAB_SIZE if opened is None else opened.backend.get_vocab_size(with_added_tokens=True)
            )
        vocab_size = checked_integer("vocab_size", vocab_size, 2, MAX_VOCAB_SIZE)
        if opened is not None and vocab_size < opened.vocab_size:  # ids from it on would not be scored
            raise InputError(
                f"vocab_size: got {vocab_size}, expected at least {opened.vocab_size}, as its tokenizer has"
            )
        self.names = tuple(keys)
        numbers_of = np.array(read, dtype=np.uint64)
        self.keys = numbers_of if self.scheme.name == "synthid" else numbers_of[:, 0].copy()
        self.owners = np.array(owners, np.int32)
        for array in (self.keys, self.owners):
            array.setflags(write=False)
        self.profile = ForeignProfile(
            self.scheme,
            vocab_size,
            None if opened is None else opened.digest,
            None if opened is None else opened.source,
        )
        self.scheme.family(vocab_size)  # refuses what goes with no vocabulary of this size
        self._tokenizer = opened
        self._prepared: Any = None
        self._rebuild: functools.partial[EngineKeys] | None = None

    @classmethod
    def unnamed(
        cls, scheme: str, keys: Sequence[Any], *, vocab_size: int | None = None, **parameters: Any
    ) -> EngineKeys:
        """Return keys [K] without agents, to score ids with; of no two the same, but they may mark alike.

        >>> EngineKeys.unnamed("sglang-gumbel", ["0123456789abcdef"]).names
        ('key 0',)

        Args:
            scheme: as for `EngineKeys`.
            keys: a list of keys.
            vocab_size: as for `EngineKeys`.
            **parameters: as for `EngineKeys`.

        Raises:
            InputError: as for `EngineKeys`.
        """
        if isinstance(keys, str) or not isinstance(keys, (Sequence, np.ndarray)):
            raise InputError(f"keys: got a {type(keys).__name__}, expected a list of keys [K]")
        made = cls.__new__(cls)
        named = {f"key {i}": key for i, key in enumerate(keys)}
        made._take(scheme, named, None, vocab_size, parameters, apart=False)
        return made

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        scheme: str,
        *,
        tokenizer: Any = None,
        vocab_size: int | None = None,
        secret_mount: bool = False,
        **parameters: Any,
    ) -> EngineKeys:
        """Read the keys from a JSON file, {agent: key}, that only its owner may read.

        Args:
            path: the file, of mode 0600.
            scheme, tokenizer, vocab_size: as for `EngineKeys`.
            secret_mount: accept a read-only mount of any file mode.
            **parameters: as for `EngineKeys`.

        Raises:
            RegistryError: the file cannot be read, others may read it, or it is no JSON object of agents.
            InputError: as for `EngineKeys`.
            TokenizerMismatch: as for `EngineKeys`.
        """
        where, problem = pathlib.Path(path).absolute(), None
        try:
            found = cls._read(where, secret_mount, scheme, tokenizer, vocab_size, parameters)
        except IetError as error:
            problem = type(error)(str(error))
        if problem is not None:
            # Out here, so that the frames that held the keys are not part of it.
            raise problem
        found._rebuild = functools.partial(
            cls.load,
            where,
            scheme,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            secret_mount=secret_mount,
            **parameters,
        )
        return found

    @classmethod
    def _read(
        cls,
        where: pathlib.Path,
        secret_mount: bool,
        scheme: str,
        tokenizer: Any,
        vocab_size: int | None,
        parameters: dict[str, Any],
    ) -> EngineKeys:
        data = read_private(where, secret_mount)
        try:
            keys = json.loads(data.decode(), object_pairs_hook=_distinct)
        except (ValueError, RecursionError):
            keys = None
        if not isinstance(keys, dict):
            raise RegistryError(f"{where}: expected a JSON object of agents, each once, and their keys")
        return cls(scheme, keys, tokenizer=tokenizer, vocab_size=vocab_size, **parameters)

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of profile and names; of no key: a short one could be found from it."""
        return canonical_digest({"profile": self.profile.digest, "agents": list(self.names)})

    def scores(self, token_ids: Ids, num_threads: int) -> NDArray[np.float32]:
        """Return x_j [T, K] of `token_ids`: `score_tokens`, which checks them and `num_threads`, here."""
        texts = self._text(token_ids)
        scored = self.scheme.scored(texts, self.profile.vocab_size)
        return self._scores(texts, scored, num_threads)[texts.starts[0] :]

    def _text(self, token_ids: Ids) -> Texts:
        return Texts.of([token_ids], self.scheme.n_gram)

    def _scores(self, texts: Texts, scored: Mask, threads: int) -> NDArray[np.float32]:
        self._prepare()
        size = self.profile.vocab_size
        return self.scheme.scores(texts.ids, scored, self.keys, size, self._prepared, threads)

    def _prepare(self) -> None:
        if self._prepared is None:
            self._prepared = self.scheme.prepare(self.keys)

    def scored(self, token_ids: Ids) -> Mask:
        """Tell which positions are scored, and not alike under every key, [T]."""
        texts = self._text(token_ids)
        return self.scheme.scored(texts, self.profile.vocab_size)[texts.starts[0] :]

    def pair_numbers(self, token_ids: Ids, counting: Mask) -> Ids:
        """Number the positions of `token_ids` that are `counting` [T]: `kernels.pair_numbers` here."""
        texts = self._text(token_ids)
        start = int(texts.starts[0])
        counted = np.concatenate([np.zeros(start, np.bool_), counting])
        return self.scheme.pair_numbers(texts, counted)[0][start:]

    def pairs_of(self, texts: Texts, counted: Mask | None = None) -> tuple[Ids, Mask]:
        """Return `pair_numbers` of what is scored in each of many texts, and which stood before in it.

        `counted` bool [N] are the positions to number; None: all.
        """
        scored = self.scheme.scored(texts, self.profile.vocab_size)
        return self.scheme.pair_numbers(texts, scored if counted is None else scored & counted)

    def scores_of(self, texts: Texts, num_threads: int) -> NDArray[np.float32]:
        """Return `scores` [N, K] of many texts, 0 in the padding: each as if it stood by itself.

        `num_threads` is as in `scores`.
        """
        return self._scores(texts, self.scheme.scored(texts, self.profile.vocab_size), num_threads)

    def subset(self, columns: slice | NDArray[np.int64]) -> EngineKeys:
        """Return the same with some of the keys; `owners` are still places in all the names."""
        if isinstance(columns, slice):
            self._prepare()
        some = super().subset(columns)
        # A view of columns side by side, or none: making tables again is cheaper than copying columns.
        kept = self._prepared is not None and isinstance(columns, slice) and columns.step in (None, 1)
        some._prepared = self._prepared[..., columns] if kept else None
        some._rebuild = None
        return some

    def __copy__(self) -> EngineKeys:
        return self  # it never changes

    def __deepcopy__(self, memo: object) -> EngineKeys:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._rebuild is None:
            raise RegistryError(
                "EngineKeys hold keys and are not pickled; those of EngineKeys.load are, as path"
            )
        return self._rebuild, ()

    def __repr__(self) -> str:
        shown = ", ".join(itertools.islice(self.names, 20)) + (", ..." if len(self.names) > 20 else "")
        if not hasattr(self, "profile"):
            return "EngineKeys(refused)"
        profile = self.profile
        return f"EngineKeys({len(self.names)} agents: {shown}; {profile.scheme}, V {profile.vocab_size})"


def _scheme(name: str, parameters: Mapping[str, Any], keys: Any) -> EngineScheme:
    if not isinstance(name, str) or name not in SCHEMES:
        raise InputError(f"scheme: got {name!r:.80}, expected one of {sorted(SCHEMES)}")
    kind = SCHEMES[name]
    known = [field.name for field in dataclasses.fields(kind) if field.name != "version"]
    for parameter in parameters:
        if parameter not in known:
            raise InputError(f"{parameter}: scheme {name!r} has no such parameter, expected some of {known}")
    given = {key: value for key, value in parameters.items() if value is not None}
    if kind is SynthId and isinstance(keys, Mapping) and keys:
        first = next(iter(keys.values()))
        first = first[0] if SynthId.is_list(first) else first
        given.setdefault("depth", len(first) if EngineScheme.is_list(first) else 1)
    return kind(**given)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found
