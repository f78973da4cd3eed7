"""Agents' keys under the marks of serving engines; scores are those of the engines' own detectors.

    vllm-gumbel     vLLM's keyed Gumbel-max: Philox4x32-10 or HMAC-SHA256 of (key, context, token)
    vllm-red-green  vLLM's red-green lists, by the same functions
    vllm-synthid    vLLM's SynthID-Text, by Philox4x32-10
    vllm-sbw        the green lists of the package sbw and of vLLM's `sbw`
    sglang-gumbel   SGLang's keyed Gumbel-max: MurmurHash3 of (key, context, token)
    kgw             the green lists of transformers' WatermarkingConfig
    synthid         the g-values of transformers' SynthIDTextWatermarkingConfig

Each is an entry of `SCHEMES`: its parameters, its keys, its score and its null distribution. `EngineKeys`
puts agents under keys of one of them. docs/internals/foreign_marks.md has the equations and their sources.
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
from iet.marks.foreign.gumbel import SglangGumbel, VllmGumbel, vllm_dual_keys
from iet.marks.foreign.keys import ForeignKeys, ForeignProfile, Ids, checked_integer
from iet.marks.foreign.kgw import Kgw
from iet.marks.foreign.scheme import EngineScheme, Mask
from iet.marks.foreign.synthid import SynthId
from iet.marks.foreign.vllm import VllmRedGreen, VllmSbw, VllmSynthId
from iet.marks.names import checked_name
from iet.marks.scheme import MAX_VOCAB_SIZE, canonical_digest
from iet.marks.tokenizer import Tokenizer
from iet.native.texts import Texts

__all__ = ["SCHEMES", "EngineKeys", "EngineScheme", "vllm_dual_keys"]

SCHEMES: Mapping[str, type[EngineScheme]] = {
    scheme.name: scheme
    for scheme in (VllmGumbel, VllmRedGreen, VllmSynthId, VllmSbw, SglangGumbel, Kgw, SynthId)
}
"""Name -> the class of the scheme, with the defaults of its parameters."""


class EngineKeys(ForeignKeys):
    """Agents under the keys that a serving engine marked their text with.

    `score_tokens` and an `Auditor` accept them like a `Registry`. They never change.

    >>> keys = EngineKeys("vllm-gumbel", {"planner": 42, "critic": 43})
    >>> keys
    EngineKeys(2 agents: planner, critic; vllm-gumbel, n 5, V 16777216)

    Args:
        scheme: a key of `iet.marks.foreign.engines.SCHEMES`.
        keys: agent -> key, or a list of keys of one agent. Of the marks of vLLM an integer from 0 to 2^64 - 1
            (of prf "hmac_sha256" to 2^256 - 1), of "sglang-gumbel" a str of 1 to 16 hex digits, of "kgw" the
            `hashing_key` and of "vllm-sbw" an integer from 1 to 2^63 - 1, of "synthid" a list of `depth`
            integers from 0 to 2^63 - 1.
        tokenizer: anything that `iet.marks.tokenizer.Tokenizer` takes. None: only token ids can be audited.
        vocab_size: V, 2 to 2^24. Of "kgw" that of the model's config, on which its lists depend, and needed;
            of the others only a limit of what is scored. Default: that of the tokenizer with added tokens,
            else 2^24.
        **parameters: of the scheme, see its class there: n_gram, of "vllm-gumbel" prf, of "vllm-red-green"
            prf and gamma, of "vllm-synthid" depth, of "vllm-sbw" gamma and seeding_scheme, of "kgw"
            greenlist_ratio and seeding_scheme, of "synthid" depth, sampling_table_size, sampling_table_seed
            and weighted.

    Raises:
        InputError: there are no agents, two keys are equal or have equal scores, the scheme or a parameter is
            unknown, or a value is out of range.
        TokenizerMismatch: the tokenizer cannot be read.
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
        self._init(scheme, keys, tokenizer, vocab_size, parameters, distinct_scores=True)

    def _init(
        self,
        scheme: str,
        keys: Mapping[str, Any],
        tokenizer: Any,
        vocab_size: int | None,
        parameters: Mapping[str, Any],
        *,
        distinct_scores: bool,
    ) -> None:
        """Do the work of `__init__`; accept different keys with equal scores unless `distinct_scores`."""
        self.names: tuple[str, ...] = ()  # for a repr while an error is raised
        self.scheme = _scheme(scheme, parameters, keys)
        if not isinstance(keys, Mapping) or not keys:
            got = "no agents" if isinstance(keys, Mapping) else f"a {type(keys).__name__}"
            raise InputError(f"keys: got {got}, expected agents and their keys, {{'planner': ...}}")
        numbers, owners = self._checked(keys, distinct_scores)
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
        if opened is not None and vocab_size < opened.vocab_size:  # higher ids would not be scored
            raise InputError(
                f"vocab_size: got {vocab_size}, expected at least {opened.vocab_size}, as its tokenizer has"
            )
        self.names = tuple(keys)
        self.keys = numbers
        self.owners = owners
        for array in (self.keys, self.owners):
            array.setflags(write=False)
        self.profile = ForeignProfile.of(self.scheme, vocab_size, opened)
        self.scheme.law(vocab_size)  # raises an InputError if the scheme needs another vocabulary size
        self._tokenizer = opened
        self._prepared: Any = None
        self._rebuild: functools.partial[EngineKeys] | None = None

    def _checked(
        self, keys: Mapping[str, Any], distinct_scores: bool
    ) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Return the keys as numbers [K, ...], and the agent of each as an index [K]."""
        rows, owners = list[tuple[int, ...]](), list[int]()
        first = dict[tuple[int, ...], tuple[tuple[int, ...], str]]()  # effective key -> first key and agent
        for owner, (name, value) in enumerate(keys.items()):
            argument = f"keys: key of {checked_name(name)!r}"
            several = value if self.scheme.is_list(value) else [value]
            if len(several) == 0:
                raise InputError(f"{argument}: got an empty list, expected at least one")
            for key in several:
                numbers = self.scheme.checked_key(argument, key)
                effective = self.scheme.effective_key(numbers) if distinct_scores else numbers
                if effective in first:
                    same, agent = first[effective]
                    got = "that" if same == numbers else "one that marks as that"
                    raise InputError(f"{argument}: got {got} of {agent!r}, expected one of its own")
                first[effective] = numbers, name
                rows.append(numbers)
                owners.append(owner)
        return np.array(rows, dtype=np.uint64), np.array(owners, np.int32)

    @classmethod
    def unnamed(
        cls, scheme: str, keys: Sequence[Any], *, vocab_size: int | None = None, **parameters: Any
    ) -> EngineKeys:
        """Return distinct keys [K] without agents, to score ids; their scores may be equal.

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
        unnamed = cls.__new__(cls)
        named = {f"key {i}": key for i, key in enumerate(keys)}
        unnamed._init(scheme, named, None, vocab_size, parameters, distinct_scores=False)
        return unnamed

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
        """Read keys from a JSON file, {agent: key}, that only its owner may read.

        Args:
            path: the file, of mode 0600.
            scheme, tokenizer, vocab_size: as for `EngineKeys`.
            secret_mount: accept a read-only mount of any file mode.
            **parameters: as for `EngineKeys`.

        Raises:
            RegistryError: the file cannot be read, others may read it, or it is not a JSON object of agents.
            InputError: as for `EngineKeys`.
            TokenizerMismatch: as for `EngineKeys`.
        """
        path = pathlib.Path(path).absolute()
        options = {"tokenizer": tokenizer, "vocab_size": vocab_size, **parameters}
        loaded, problem = None, None
        try:
            loaded = cls(scheme, _read(path, secret_mount), **options)
        except IetError as error:
            problem = type(error)(str(error))
        if loaded is None:
            assert problem is not None
            raise problem  # outside of `except`, so that its traceback has no frame that holds the keys
        loaded._rebuild = functools.partial(cls.load, path, scheme, secret_mount=secret_mount, **options)
        return loaded

    @property
    def digest(self) -> str:
        """BLAKE2b-256, in hex, of profile and names; not of keys, because short ones could be guessed."""
        return canonical_digest({"profile": self.profile.digest, "agents": list(self.names)})

    def scores(self, texts: Texts, num_threads: int) -> NDArray[np.float32]:
        """Return x_j [N, K] of `texts`, 0 in the padding; `num_threads` as in `score_tokens`."""
        self._prepare()
        size = self.profile.vocab_size
        scored = self.scheme.scored(texts, size)
        return self.scheme.scores(texts.ids, scored, self.keys, size, self._prepared, num_threads)

    def scored(self, texts: Texts) -> Mask:
        """Return which positions [N] are scored, with scores that differ between keys."""
        return self.scheme.scored(texts, self.profile.vocab_size)

    def pairs(self, texts: Texts, counted: Mask | None = None) -> tuple[Ids, Mask]:
        """Number the scored and `counted` positions of `texts`, see `Keys.pairs`."""
        scored = self.scored(texts)
        return self.scheme.pair_numbers(texts, scored if counted is None else scored & counted)

    def _prepare(self) -> None:
        if self._prepared is None:
            self._prepared = self.scheme.prepare(self.keys)

    def subset(self, columns: slice | NDArray[np.int64]) -> EngineKeys:
        """Return some of the keys; `owners` are still indices into all the names."""
        if isinstance(columns, slice):
            self._prepare()
        subset = super().subset(columns)
        # A view of adjacent columns is free; otherwise making tables again is cheaper than copying columns.
        is_view = self._prepared is not None and isinstance(columns, slice) and columns.step in (None, 1)
        subset._prepared = self._prepared[..., columns] if is_view else None
        subset._rebuild = None
        return subset

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
        names = ", ".join(itertools.islice(self.names, 20)) + (", ..." if len(self.names) > 20 else "")
        if not hasattr(self, "profile"):
            return "EngineKeys(refused)"
        profile = self.profile
        return f"EngineKeys({len(self.names)} agents: {names}; {profile.scheme}, V {profile.vocab_size})"


def _scheme(name: str, parameters: Mapping[str, Any], keys: Any) -> EngineScheme:
    if not isinstance(name, str) or name not in SCHEMES:
        raise InputError(f"scheme: got {name!r:.80}, expected one of {sorted(SCHEMES)}")
    kind = SCHEMES[name]
    accepted = [field.name for field in dataclasses.fields(kind) if field.name != "version"]
    for parameter in parameters:
        if parameter not in accepted:
            raise InputError(
                f"{parameter}: scheme {name!r} has no such parameter, expected some of {accepted}"
            )
    specified = {key: value for key, value in parameters.items() if value is not None}
    if kind is SynthId and isinstance(keys, Mapping) and keys:
        first = next(iter(keys.values()))
        first = first[0] if SynthId.is_list(first) else first
        specified.setdefault("depth", len(first) if EngineScheme.is_list(first) else 1)
    return kind(**specified)


def _read(path: pathlib.Path, secret_mount: bool) -> dict[str, Any]:
    data = read_private(path, secret_mount)
    try:
        keys = json.loads(data.decode(), object_pairs_hook=_distinct)
    except (ValueError, RecursionError):
        keys = None
    if not isinstance(keys, dict):
        raise RegistryError(f"{path}: expected a JSON object of agents, each once, and their keys")
    return keys


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name twice")
    return fields
