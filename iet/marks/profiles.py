"""Profiles and their tokenizers: make a profile, open its tokenizer, and keep the tokenizer's path valid."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from iet.errors import InputError, TokenizerMismatch
from iet.marks.derivation import check_frequency
from iet.marks.scheme import AnyProfile, Profile, Scheme
from iet.marks.tokenizer import Tokenizer
from iet.marks.tokenizer_files import is_path


def make_profile(
    tokenizer: Tokenizer | None, vocab_size: int | None, unmarked_ids: Iterable[int] | None, scheme: Scheme
) -> Profile:
    """Return the profile of a scheme and a vocabulary; arguments as in `Registry.create`.

    Raises:
        InputError: a value is out of range, or there is neither a tokenizer nor a vocabulary size.
    """
    if not isinstance(scheme, Scheme):
        raise InputError(f"scheme: got {type(scheme).__name__}, expected iet.Scheme")
    if vocab_size is None:
        if tokenizer is None:
            raise InputError("tokenizer and vocab_size: got neither, expected at least one")
        vocab_size = tokenizer.vocab_size
    if tokenizer is None:
        profile = Profile(scheme, vocab_size)
    else:
        source = tokenizer.source
        if source is not None and is_path(source):
            source = os.path.abspath(source)
        profile = Profile(scheme, vocab_size, tokenizer.digest, tokenizer_source=source)
        if unmarked_ids is None:
            unmarked_ids = (i for i in tokenizer.special_ids if i < vocab_size)
    profile = dataclasses.replace(profile, unmarked_ids=tuple(unmarked_ids or ()))
    check_frequency(profile)
    return profile


def with_relative_source(profile: Profile, old: pathlib.Path | None, new: pathlib.Path | None) -> Profile:
    """Return the profile with the tokenizer's path as a registry file holds it.

    A tokenizer in or below the registry's folder has a path relative to it, so that both can move together.

    Args:
        profile: the profile.
        old: the registry file that the path is relative to now; None: it is absolute.
        new: the registry file that the path will be relative to; None: make it absolute.
    """
    source = profile.tokenizer_source
    if source is None or not is_path(source):
        return profile
    path = pathlib.Path(source) if old is None else old.parent / source
    if new is not None and path.is_relative_to(new.parent):
        path = path.relative_to(new.parent)
    return dataclasses.replace(profile, tokenizer_source=path.as_posix())


def open_tokenizer(profile: AnyProfile, source: Any) -> Tokenizer:
    """Open the tokenizer of a profile and compare its digest.

    Args:
        profile: the profile.
        source: path or object; None: unknown.

    Raises:
        TokenizerMismatch: there is no tokenizer at `source`, or it has another digest.
    """
    if profile.tokenizer_digest is None:
        raise TokenizerMismatch(f"profile {profile.id} has no tokenizer: it reads token ids only")
    path = profile.tokenizer_source
    expected = (
        f"profile {profile.id} expects the tokenizer of digest {profile.tokenizer_digest[:16]}, V"
        f" {profile.vocab_size:,}{'' if path is None else f', found at {path!r} when it was made'}"
    )
    if source is None:
        raise TokenizerMismatch(f"{expected}, but does not say where it is; pass it: --tokenizer PATH")
    try:
        tokenizer = source if isinstance(source, Tokenizer) else Tokenizer(source)
    except TokenizerMismatch as error:
        raise TokenizerMismatch(
            f"{error}. {expected}; pass it: --tokenizer PATH; to include it in a registry for another host:"
            " iet keys export --with-tokenizer"
        ) from None
    if tokenizer.digest != profile.tokenizer_digest:
        raise TokenizerMismatch(
            f"tokenizer: got digest {tokenizer.digest[:16]} of {tokenizer.vocab_size:,} tokens"
            f"{'' if tokenizer.source is None else f' ({tokenizer.source})'}. {expected}"
        )
    return tokenizer
