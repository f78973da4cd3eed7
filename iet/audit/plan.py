"""The keys, tokenizers, decoder and level of an audit, checked once and frozen."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.audit.language_model import LanguageModel
from iet.audit.layout_restoration import MOST_WAYS, Restored, restored
from iet.audit.options import MAX_DECOYS, AuditOptions
from iet.decoding import DECODERS, Decoder
from iet.errors import InputError, RegistryError
from iet.kernels import check_token_ids
from iet.marks.families import FEWEST_VALUES, few_values
from iet.marks.foreign.keys import ForeignKeys
from iet.marks.keys import AnyProfile, Keys, KeyTable
from iet.marks.published import PublishedIndex
from iet.marks.registry import Registry
from iet.marks.scheme import canonical_digest
from iet.marks.tokenizer import Encoding, Tokenizer

ALL_KEYS = 64
"""With more keys, only the decoder's candidates among them are scored token by token."""

Source = Registry | ForeignKeys


@dataclasses.dataclass(frozen=True, eq=False)
class ProfileReader:
    """The keys and the tokenizer of one profile.

    Attributes:
        keys: those of the possible writers.
        decoys: keys of no agent; None: p-values come from the null law.
        first: index of its first agent among the plan's agents.
        source, profile_id, tokenizer: the arguments of `open_tokenizer`.
    """

    keys: Keys
    decoys: KeyTable | None
    first: int
    source: Source
    profile_id: str | None
    tokenizer: Any

    @functools.cached_property
    def opened(self) -> Tokenizer:
        """The profile's tokenizer.

        Raises:
            TokenizerMismatch: it is another one, or cannot be found.
        """
        return self.source.open_tokenizer(self.profile_id, self.tokenizer)

    @property
    def by_candidates(self) -> bool:
        """Whether only the decoder's candidates among the keys are scored token by token."""
        return len(self.keys) > ALL_KEYS

    @property
    def owners(self) -> NDArray[np.int64]:
        """int64 [K]: the agent of each key among those of the plan, ascending."""
        return self.keys.owners.astype(np.int64) + self.first

    @functools.cached_property
    def keys_of_agents(self) -> NDArray[np.int64]:
        """int64: number of keys of each agent that has some."""
        return np.unique(self.keys.owners, return_counts=True)[1]

    @functools.cached_property
    def shares(self) -> NDArray[np.float64]:
        """float64 [K], which sum to 1: an equal share for each agent, in equal parts for each of its keys."""
        counts = self.keys_of_agents
        return np.repeat(1 / (len(counts) * counts), counts)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """The options of an `Auditor` with the keys, readers and model that follow from them.

    Attributes:
        options: as given.
        readers: one for each profile.
        names: the agents of all profiles; an agent is an index into them.
        model: the language model, None without.
        registry_digest: of the keys that are read, whatever is added to a registry later.
        published: index of the text that agents published; None: no index.
        num_readings: number of readings of the text that are tried; evidence is corrected for it.
    """

    options: AuditOptions
    readers: tuple[ProfileReader, ...]
    names: tuple[str, ...]
    model: LanguageModel | None
    registry_digest: str
    published: PublishedIndex | None
    num_readings: int = 1

    @classmethod
    def of(cls, sources: Sequence[Source], options: AuditOptions) -> Plan:
        """Check what needs no text, and return the plan.

        Raises:
            InputError, RegistryError, ShapeError, BackendUnavailable: as `Auditor` does.
        """
        _check_sources(sources, options.profile)
        if options.decoys and any(isinstance(source, ForeignKeys) for source in sources):
            raise InputError(f"decoys: got {options.decoys}, expected 0: keys of other schemes have none")
        _check_known(sources, options.known_agents)
        if options.sessions and not any(isinstance(source, Registry) for source in sources):
            raise InputError(f"sessions: got {len(options.sessions)}, but keys of other schemes have none")
        readers = _readers(sources, options)
        names = tuple(name for reader in readers for name in reader.keys.names)
        if not names:
            raise InputError("registry: the profile has no agents; expected at least one (registry.add)")
        digests = [source.digest for source in sources]
        model = options.model
        if model is not None and not isinstance(model, LanguageModel):
            model = LanguageModel(model)
        plan = cls(
            options,
            readers,
            names,
            model,
            digests[0] if len(digests) == 1 else canonical_digest({"registries": digests}),
            _index(sources, options.published),
        )
        plan._check()
        return plan

    @property
    def decoder(self) -> Decoder:
        """The decoder that the options name."""
        return DECODERS[self.options.decoder]

    @property
    def sessions(self) -> tuple[str, ...]:
        """Ids of the sessions whose keys are read in addition to the agents' own."""
        return tuple(self.options.sessions or ())

    def _check(self) -> None:
        """Refuse what does not go together: now, not after the first text has been tokenized and scored."""
        options = self.options
        # The lowest p-value of one of A agents, with k keys, 1 - (1 - 1/(1 + M))^(k·A), must reach the level.
        most_keys = max(int(reader.keys_of_agents.max(initial=1)) for reader in self.readers)
        level = options.level / (MOST_WAYS if options.as_copied else 1)
        lowest = -math.expm1(math.log1p(-level) / (self.agents * most_keys))
        needed = math.ceil(1 / max(lowest, sys.float_info.min)) - 1
        if 0 < options.decoys < needed and options.allow_unattributed:
            several = f"{self.agents} agents of up to {most_keys} keys"
            writers = f"{self.agents} keys" if most_keys == 1 else several
            if needed > MAX_DECOYS:
                raise InputError(
                    f"decoys: got {options.decoys}, expected 0: with {writers} no p-value from at most"
                    f" {MAX_DECOYS} decoys reaches level {options.level:g}"
                )
            raise InputError(
                f"decoys: got {options.decoys}, expected at least {needed}: with {writers}"
                f" no p-value from fewer reaches level {options.level:g}"
            )
        ids = [reader.keys.profile.id for reader in self.readers]
        strengths = options.decoder_options.get("strengths")
        if self.several and (not self.decoder.has_posterior or strengths is not None):
            raise InputError(
                f"registry: its agents have {len(ids)} profiles, which only the decoder 'posterior' reads"
                f" together, with strengths of its own; name one of them (profile=): {ids}"
            )
        if self.model is not None:
            if self.several:
                raise InputError(
                    f"model: the registry's agents have {len(ids)} profiles, a model has one tokenizer;"
                    f" name a profile (profile=): {ids}"
                )
            if strengths is not None:
                raise InputError(
                    "strengths: got some and log_ratios, expected one of them: ratios hold strengths"
                )
            self.model.check(self.readers[0].keys)
        index = self.published
        if index is not None and index.profiles.isdisjoint(
            reader.keys.profile.digest for reader in self.readers
        ):
            raise InputError(
                f"published: got an index of the profiles {sorted(index.registry.profiles)}, expected one"
                f" of {ids}"
            )
        for reader in self.readers:
            options.decoding.check(None if self.model else reader.keys.profile.family, len(reader.keys))

    @property
    def several(self) -> bool:
        """Whether agents of several profiles are read together."""
        return len(self.readers) > 1

    @property
    def choices(self) -> int:
        """Number of keys that p-values of segments are corrected for."""
        return sum(len(reader.keys) for reader in self.readers)

    @property
    def agents(self) -> int:
        """Number of agents with a key, which p-values of agents are corrected for."""
        return sum(len(reader.keys_of_agents) for reader in self.readers)

    def share_of(self, reader: ProfileReader) -> float:
        """Return the share of a profile's agents among all, before a text is seen."""
        return len(reader.keys_of_agents) / self.agents

    @property
    def profiles(self) -> tuple[AnyProfile, ...]:
        """Schemes, vocabularies and tokenizers that are assumed."""
        return tuple(reader.keys.profile for reader in self.readers)

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The fields of `iet.Report` that all texts share."""
        options = self.options
        return {
            "profiles": self.profiles,
            "registry_digest": self.registry_digest,
            "agents": self.names,
            "decoder": options.decoder,
            "options": self.shown_options,
            "level": options.level,
            "allow_unattributed": options.allow_unattributed,
            "decoys": options.decoys,
        }

    @property
    def shown_options(self) -> dict[str, Any]:
        """Options of the decoder, and what else of the options changes what is read."""
        options = self.options
        more: dict[str, Any] = {"known_agents": options.known_agents}
        if options.attributed != "segment":
            more["attributed"] = options.attributed
        if options.as_copied:
            more["as_copied"] = True
        return {
            **options.decoder_options,
            **{name: value for name, value in more.items() if value is not None},
        }

    @property
    def many_at_once(self) -> bool:
        """Whether many texts are read in one pass.

        Several profiles meet on the characters of one text, and of many keys (decoys too) each text has sums
        and candidates of its own: such texts are read one by one.
        """
        return not (self.several or self.readers[0].by_candidates or self.options.decoys)

    def encoding_of_ids(self, token_ids: ArrayLike) -> tuple[Encoding, ...]:
        """Return ids in the tokens of every profile.

        Raises:
            InputError: an id is beyond int64, or means something else in each profile.
            ShapeError: these are no vector of integers.
        """
        ids = check_token_ids(token_ids)
        if len({profile.tokenizer_digest for profile in self.profiles}) > 1:
            known_ids = [profile.id for profile in self.profiles]
            raise InputError(
                f"token_ids: of which profile? Got no profile, expected Auditor(profile=) of {known_ids}"
            )
        return self._with_published(None, (Encoding(ids),) * len(self.readers))

    def encode(self, texts: Sequence[str]) -> list[tuple[Encoding, ...]]:
        """Return every text in the tokens of every profile.

        Raises:
            InputError: a text is not valid Unicode.
            TokenizerMismatch: no tokenizer with a profile's digest.
        """
        tokenizers = [reader.opened for reader in self.readers]
        encodings = {t.digest: t.encode_batch(texts) for t in {t.digest: t for t in tokenizers}.values()}
        encoding = zip(*(encodings[t.digest] for t in tokenizers), strict=True)
        return [self._with_published(text, encoded) for text, encoded in zip(texts, encoding, strict=True)]

    def encode_copied(self, text: str) -> list[tuple[Restored, tuple[Encoding, ...]]]:
        """Return a text as it may have been before it was copied, each way in the tokens of every profile.

        Characters of the tokens are those of the text as given.

        Raises: as `encode`.
        """
        if not isinstance(text, str):
            raise InputError(f"text: got {type(text).__name__}, expected str")
        ways = restored(text)
        encoding = self.encode([way.text for way in ways])
        return [
            (way, tuple(encoding.moved(way.places) for encoding in encoded))
            for way, encoded in zip(ways, encoding, strict=True)
        ]

    def _with_published(self, text: str | None, encodings: tuple[Encoding, ...]) -> tuple[Encoding, ...]:
        """Return a text in the tokens of every profile, with what of it was published before."""
        if self.published is None:
            return encodings
        return tuple(
            dataclasses.replace(
                encoding, published=self.published.seen(encoding.token_ids, reader.keys, text)
            )
            for encoding, reader in zip(encodings, self.readers, strict=True)
        )


def _check_sources(sources: Sequence[Source], profile: str | None) -> None:
    for source in sources:
        if not isinstance(source, (Registry, ForeignKeys)):
            raise InputError(
                f"registry: got {type(source).__name__}, expected iet.Registry, iet.WaterfallKeys or"
                " iet.EngineKeys (iet.Registry.load reads a file)"
            )
    if not sources:
        raise InputError("registry: got none, expected at least one")
    if len(sources) > 1 and profile is not None:
        raise InputError(f"profile: got {profile!r} and {len(sources)} registries, expected one of them")
    names = [name for source in sources for name in _names(source)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"registry: the agent {twice!r} is in two of them, expected names of their own")


def _index(
    sources: Sequence[Source], index_given: PublishedIndex | str | os.PathLike[str] | None
) -> PublishedIndex | None:
    """Return the index of what was published, opened with the registry whose key it was made under."""
    if index_given is None or isinstance(index_given, PublishedIndex):
        return index_given
    if not isinstance(index_given, (str, os.PathLike)):
        raise InputError(
            f"published: got {type(index_given).__name__}, expected iet.PublishedIndex, or the path of one"
        )
    registries = [source for source in sources if isinstance(source, Registry)]
    if not registries:
        raise InputError("published: got an index, but keys of other schemes alone have none")
    for registry in registries[:-1]:
        try:
            return PublishedIndex(index_given, registry)
        except RegistryError:
            continue
    return PublishedIndex(index_given, registries[-1])


def _names(source: Source) -> tuple[str, ...]:
    return source.names if isinstance(source, ForeignKeys) else tuple(source)


def _readers(sources: Sequence[Source], options: AuditOptions) -> tuple[ProfileReader, ...]:
    known_ids, sessions = options.known_agents, tuple(options.sessions or ())
    profiles_of = [(source, id) for source in sources for id in _profiles(source, options.profile, known_ids)]
    readers, first = list[ProfileReader](), 0
    for (source, id), opened_from in zip(
        profiles_of, _tokenizers(options.tokenizer, profiles_of), strict=True
    ):
        own_options = source.scoring_keys(id)
        keys: Keys = (
            source.session_keys(sessions, id) if isinstance(source, Registry) and sessions else own_options
        )
        no_keys = keys.decoys(options.decoys) if isinstance(keys, KeyTable) and options.decoys else None
        if known_ids is not None:
            names = keys.names
            holder = [names[owner] in known_ids for owner in keys.owners.tolist()]
            keys = keys.subset(np.flatnonzero(holder))
        _refuse_few_values(keys)
        readers.append(ProfileReader(keys, no_keys, first, source, id, opened_from))
        first += len(keys.names)
    return tuple(readers)


def _profiles(source: Source, profile: str | None, known_ids: Sequence[str] | None) -> list[str | None]:
    """Return the ids of the profiles to read: the one that is named, or all that have (known) agents."""
    if not isinstance(source, Registry):
        reads = known_ids is None or not {*source.names}.isdisjoint(known_ids)
        return [profile] if reads else []
    if profile is None:
        names = {id: source.names(id) for id in source.profiles}
        return [
            id for id in names if names[id] and (known_ids is None or not {*names[id]}.isdisjoint(known_ids))
        ]
    if known_ids is not None and source.names(profile) and {*source.names(profile)}.isdisjoint(known_ids):
        raise InputError(
            f"known_agents: got {list(known_ids)}, expected some of profile {profile}:"
            f" {list(source.names(profile))}"
        )
    return [profile]


def _tokenizers(tokenizer: Any, profiles_of: Sequence[tuple[Source, str | None]]) -> list[Any]:
    """Return what each profile's tokenizer is opened from."""
    ids = [id or source.scoring_keys(id).profile.id for source, id in profiles_of]
    if isinstance(tokenizer, Mapping) and any(isinstance(source, Registry) for source, _ in profiles_of):
        known_ids = {
            id for source, _ in profiles_of if isinstance(source, Registry) for id in source.profiles
        }
        for id in tokenizer:
            if id not in known_ids and id not in ids:
                profiles_of[0][0].scoring_keys(id)  # raises, and names the known profiles
        return [tokenizer.get(id) for id in ids]
    if tokenizer is not None and len(profiles_of) > 1:
        raise InputError(
            f"tokenizer: got {type(tokenizer).__name__}, expected {{profile id: tokenizer}} of {ids}"
        )
    return [tokenizer] * len(profiles_of)


def _check_known(sources: Sequence[Source], names: Sequence[str] | None) -> None:
    """Raise an InputError unless each name is of an agent of the sources."""
    owner = {name for source in sources for name in _names(source)}
    for name in names or ():
        if name not in owner:
            raise InputError(f"known_agents: got {name!r}, expected some of {sorted(owner)}")


def _refuse_few_values(keys: Keys) -> None:
    profile = keys.profile
    frequencies = getattr(keys, "k_p", None)  # marks of engines have none
    if frequencies is None:
        return
    few = np.flatnonzero(few_values(profile.vocab_size, frequencies, profile.family))
    if len(few):
        k_p = int(frequencies[few[0]])
        values = profile.vocab_size // math.gcd(profile.vocab_size, k_p)
        names = sorted({keys.names[owner] for owner in keys.owners[few].tolist()})
        raise InputError(
            f"k_p: got {k_p} with a vocabulary of {profile.vocab_size} in family {profile.family.name!r}: the"
            f" mark takes {values} values, expected at least {FEWEST_VALUES}, so that chance does not pass"
            f" for evidence; leave out (known_agents=) {names[:5]}"
        )
