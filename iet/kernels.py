"""The ops, on the fastest backend at hand: checked here, then computed by a compiled module or by NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.errors import BackendUnavailable, InputError
from iet.marks.foreign.keys import ForeignKeys
from iet.marks.foreign.waterfall import WaterfallKeys
from iet.marks.keys import Keys, KeyTable
from iet.marks.registry import Registry
from iet.native import choices, cuda, cuda_scores, host
from iet.native.host import check_token_ids as check_token_ids
from iet.native.load import Backends, backends, check_environment, load_cuda
from iet.native.marking import GUMBEL, KernelParams
from iet.native.pairs import repeats
from iet.native.texts import Texts

if TYPE_CHECKING:
    import torch

__all__ = [
    "Backends",
    "backends",
    "choose",
    "embed",
    "embed_",
    "pair_numbers",
    "permute",
    "permute_cuda",
    "positions",
    "prepare",
    "raise_if_refused",
    "score_spans",
    "score_tokens",
]


# ---------------------------------------------------------------- embed_


def embed_(
    logits: NDArray[Any] | torch.Tensor,
    contexts: ArrayLike | torch.Tensor,
    slots: ArrayLike | torch.Tensor,
    registry: Registry | KeyTable,
    *,
    counts: ArrayLike | torch.Tensor | None = None,
    profile: str | None = None,
    temperature: ArrayLike | torch.Tensor = 1.0,
    rows: ArrayLike | torch.Tensor | None = None,
    num_threads: int | None = None,
) -> None:
    """Mark a batch of logits in place: L̃_j = P⁻¹(k_π, F(k_p, κ, P(k_π, L_j))).

    The equation of § Keyed Implicit Embedding, computed without permuting anything:
    `logits[i, v] += κ·φ(P(k_π, v))` for v in [0, V), where k_π is the hash of row i's context under the key
    of its slot. Columns from V on (padded vocabularies), the profile's special and padding ids, rows with
    slot -1 and rows whose context holds such an id stay as they are. -inf stays -inf and NaN stays NaN.

    Family `gumbel` adds -log(-log u) instead, u a uniform number hashed from k_π and v, and to every column
    of a marked row. Then the token is the largest of those that the sampler keeps: take float32 logits,
    after temperature and top-p, and do not sample again (docs/internals/gumbel.md;
    `iet.WatermarkingConfig` does so).

    Args:
        logits: float32, float16 or bfloat16 [B, >= V], a writable numpy array or a torch tensor on the CPU
            or on CUDA; any strides that do not overlap. Changed in place, one rounding per logit.
        contexts: integer ids [B, n-1]: those before the position that is sampled next, oldest first.
        slots: integers [B], rows of `registry.marking_keys(profile)`, or -1 for an unmarked row of logits. An
            agent's slot, `registry.slot(agent)`, is its row.
        registry: the registry, or a `KeyTable` of it.
        counts: integers [B], only in family `gumbel`: the number of earlier occurrences of each row's context
            in its sequence, prompt included. None: 0; a row with a repeated context then needs slot -1,
            because its noise was used before.
        profile: id of the profile, if the registry has several.
        temperature: scalar or [B]; κ is multiplied by it. 1 for final `logits`; the sampler's temperature
            if it divides them afterwards.
        rows: integers [M], no number twice: the rows of `logits` that are marked. Contexts, slots, counts and
            temperatures are then [M, n-1] and [M]: entry i is for row `rows[i]`. None: all rows. On CUDA
            a duplicate is not detected, and its row is undefined.
        num_threads: of the CPU, at least 1. None: $IET_NUM_THREADS, or as many cores as the process may use;
            small batches take fewer. It changes no result.

    On CUDA contexts, slots, counts, rows (int32 or int64) and temperatures (float32, or a number) are tensors
    on the device of the logits and are read there when two kernels run, on the current stream: nothing is
    allocated, copied or waited for, so a call may be captured in a graph (`prepare` the keys before) and
    replayed with new contents. A row that would be refused below is left unmarked there, and
    `raise_if_refused` raises later. Call `prepare` before torch.compile, too.

    Raises:
        ShapeError: wrong shape, dtype, stride or device of an argument.
        InputError: a slot that names no key, counts where seeds hold none or below 0, or a negative id in
            the context of a marked row (engines write -1 if the real id is not known yet; hashing it would
            lose the mark).
        BackendUnavailable: logits on a device without a built kernel. Nothing is copied.

    Deterministic, and the same to the bit on every backend, but for the payload of a NaN. O(B·V), for marked
    rows only.
    """
    marking = keys_to_mark_with(registry, profile).marking
    _check_counts(marking, counts)
    described = host.describe_logits(logits, marking.vocab_size)
    if described.device is not None:
        cuda.embed_(load_cuda(), marking, described, contexts, slots, temperature, rows, counts=counts)
    else:
        host.embed_(marking, described, contexts, slots, counts, temperature, rows, num_threads)


def choose(
    logits: NDArray[Any] | torch.Tensor,
    contexts: ArrayLike | torch.Tensor,
    slots: ArrayLike | torch.Tensor,
    registry: Registry | KeyTable,
    *,
    counts: ArrayLike | torch.Tensor | None = None,
    profile: str | None = None,
    temperature: ArrayLike | torch.Tensor = 1.0,
    filters: Any = None,
    force: bool = False,
    num_threads: int | None = None,
) -> NDArray[np.int64] | torch.Tensor:
    """Choose the token of each row by keyed sampling, family `gumbel`: argmax(L_v - T·log(-log u_v)).

    This is the token of the largest logit after `embed_` on float32 logits at this temperature, and of equal
    ones the smallest id: a draw from softmax(L/T), or from the tokens of it that a filter keeps. Columns
    whose logit is too low to win get no noise.

    Args:
        logits: as in `embed_`; -inf for tokens that are left out. NaN counts as -inf.
        contexts, slots, registry, counts, profile, num_threads: as in `embed_`.
        temperature: T, scalar or [B], at least 0; 1 for logits that the sampler has divided already.
        filters: records [B] of `iet.native.filters.FILTER`, or on CUDA their bits, a tensor int32 [B, 4] on
            the device; None: every token is kept. A filter keeps
            tokens of equal logits together, and counts their probabilities in units of 2^-38 of the
            likeliest one; a token at the edge of top-p may therefore be kept here and not by the sampler.
        force: raise the logit of the chosen token in place, to max + 128·max(T, 1): its probability at this
            temperature is then 1, before and after any filter. (float16: T at most 400.) Required on CUDA.

    Returns:
        The tokens, int64 [B], on CUDA a tensor on the device; -1 for rows that are not marked and rows
        without a finite logit.

    Raises:
        what `embed_` raises; InputError for another family; ShapeError for wrong filters.

    Deterministic, and the same on every backend. O(B·V).
    """
    marking = keys_to_mark_with(registry, profile).marking
    _check_counts(marking, counts)
    if marking.code != GUMBEL:
        raise InputError("registry: got a family that adds to logits, expected gumbel, which chooses tokens")
    described = host.describe_logits(logits, marking.vocab_size)
    if described.device is not None:
        if not force:
            raise InputError("force: got False, expected True on CUDA, where the chosen token is forced")
        return choices.choose(load_cuda(), marking, described, contexts, slots, counts, temperature, filters)
    return host.choose(marking, described, contexts, slots, counts, temperature, filters, force, num_threads)


def embed(
    logits: torch.Tensor,
    contexts: ArrayLike | torch.Tensor,
    slots: ArrayLike | torch.Tensor,
    registry: Registry | KeyTable,
    *,
    counts: ArrayLike | torch.Tensor | None = None,
    profile: str | None = None,
    temperature: ArrayLike | torch.Tensor = 1.0,
) -> torch.Tensor:
    """Return a marked copy of a batch of logits: what `embed_` makes of `logits.clone()`, to the bit.

    On CUDA each logit is read once and written once, which is half of what a copy and `embed_` move; on the
    CPU it is those two.

    Args:
        logits: a torch tensor [B, >= V], as in `embed_`; stays as it is.
        contexts, slots, registry, counts, profile, temperature: as in `embed_`.

    Returns:
        A new tensor of the same shape, dtype and device, and of the same strides if they leave no gaps.

    Raises:
        what `embed_` raises.

    Deterministic. O(B·V) for all rows.
    """
    import torch

    marked = torch.empty_like(logits)
    if logits.device.type != "cuda" or marked.stride() != logits.stride():
        marked.copy_(logits)
        embed_(marked, contexts, slots, registry, counts=counts, profile=profile, temperature=temperature)
        return marked
    marking = keys_to_mark_with(registry, profile).marking
    _check_counts(marking, counts)
    source, target = (host.describe_logits(values, marking.vocab_size) for values in (logits, marked))
    cuda.embed_(load_cuda(), marking, target, contexts, slots, temperature, None, source, counts)
    return marked


def prepare(registry: Registry | KeyTable, device: torch.device | str, *, profile: str | None = None) -> None:
    """Put the marking keys of a registry on a CUDA device, which must not wait until a graph is captured.

    Derived keys only, once per registry and device; and, for the current stream, 16 bytes for each of 1024
    rows, which larger batches outgrow once. Any call of `embed_` outside a capture does the same.
    What a captured graph uses stays on the device for the life of the process. When a key is rotated, prepare
    and capture again: a graph keeps the keys that it was captured with.

    Args:
        registry: the registry, or a `KeyTable` of it.
        device: a CUDA device.
        profile: id of the profile, if the registry has several.

    Raises:
        BackendUnavailable: no CUDA module, or `device` is not a CUDA device.
    """
    location = cuda.checked_device(device)
    cuda.table(load_cuda(), keys_to_mark_with(registry, profile).marking, location)
    cuda.scratch(location, 1)


def raise_if_refused(device: torch.device | str) -> None:
    """Raise what `embed_` refused on a CUDA device since the last call: it cannot raise while it runs there.

    Waits for the device's current stream: call it at a point that waits anyway, as when a request ends.

    Raises:
        InputError: a marked row held a negative id in its context, or a slot, row or temperature out of
            range. Such rows were left unmarked.
        BackendUnavailable: no CUDA module, or `device` is not a CUDA device.
    """
    cuda.raise_if_refused(cuda.checked_device(device))


# ---------------------------------------------------------------- score_tokens


@overload
def score_tokens(
    token_ids: torch.Tensor,
    registry: Registry | Keys,
    *,
    profile: str | None = None,
    num_threads: int | None = None,
) -> Any: ...


@overload
def score_tokens(
    token_ids: ArrayLike,
    registry: Registry | Keys,
    *,
    profile: str | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]: ...


def score_tokens(
    token_ids: ArrayLike | torch.Tensor,
    registry: Registry | Keys,
    *,
    profile: str | None = None,
    num_threads: int | None = None,
) -> NDArray[Any] | torch.Tensor:
    """Score every position of a text under every key: x_j(a) = k_p(a)[P(k_π^(j), y_j)] (§ Agent Attribution).

    Keys of other schemes give the numbers of their own detectors: `iet.EngineKeys` those of serving engines
    (docs/internals/foreign_marks.md), `iet.WaterfallKeys` those of the public Waterfall package, with
    φ(RandomState((id, *context)).permutation(V)[y_j]); the mean of a column is the package's `q_score`
    (the same page). `EngineKeys.unnamed` and `WaterfallKeys.unnamed` take keys without agents.

    Args:
        token_ids: integer ids [T]; a CUDA tensor (int32 or int64) is scored on its device.
        registry: the registry (all epochs of all agents), or `Keys`: a `KeyTable` of it, `WaterfallKeys` or
            `EngineKeys`.
        profile: id of the profile, if the registry has several.
        num_threads: as in `embed_`.

    Returns:
        [T, K] in [-1, 1], in family `gumbel` -log(1 - u), which is above 0 and on average 1 without a mark;
        0 if a position is not scored (see `positions`): a numpy array, or for a CUDA
        tensor one on its device, queued on the current stream. Columns follow
        `registry.scoring_keys(profile)`: several for an agent whose key was rotated.
        float32; float64 under scheme `waterfall`, as in the package. There a context with an id at or above
        V gives φ(y_j) under every key, because the package uses the identity permutation after it. The scores
        contain it, as in the package, but it cannot distinguish keys, so `positions` does not count it as
        scored.

    Raises:
        ShapeError: `token_ids` is not one-dimensional or not integer.
        InputError: an id is beyond int64, or `registry` is neither a registry nor keys.
        BackendUnavailable: a CUDA tensor without the CUDA module, or under a scheme that is not ours.

    Deterministic, and the same to the bit on every backend. O(T·K); under schemes `waterfall` and `kgw`
    O(V·K) for every distinct context (see docs/internals/foreign_marks.md for how long that is).
    """
    keys = _keys(registry, profile)
    if host.on_cuda(token_ids):
        return cuda_scores.score_tokens(load_cuda(), _marking(keys), token_ids)  # type: ignore[arg-type]
    return keys.scores(Texts.single(check_token_ids(token_ids)), host.checked_threads(num_threads))


@overload
def score_spans(
    token_ids: torch.Tensor,
    boundaries: ArrayLike | torch.Tensor,
    registry: Registry | Keys,
    *,
    counted: ArrayLike | torch.Tensor | None = None,
    profile: str | None = None,
    num_threads: int | None = None,
) -> Any: ...


@overload
def score_spans(
    token_ids: ArrayLike,
    boundaries: ArrayLike | torch.Tensor,
    registry: Registry | Keys,
    *,
    counted: ArrayLike | torch.Tensor | None = None,
    profile: str | None = None,
    num_threads: int | None = None,
) -> NDArray[np.float64]: ...


def score_spans(
    token_ids: ArrayLike | torch.Tensor,
    boundaries: ArrayLike | torch.Tensor,
    registry: Registry | Keys,
    *,
    counted: ArrayLike | torch.Tensor | None = None,
    profile: str | None = None,
    num_threads: int | None = None,
) -> NDArray[np.float64] | torch.Tensor:
    """Sum the scores of every key over consecutive spans of a text, without making [T, K].

        sums[s, a] = Σ x_j(a) over the j of [boundaries[s], boundaries[s+1]) that are scored and counted

    Each score is rounded to a multiple of 2^-22 before it is added (φ itself is good to 7.4e-7), so that the
    sum is one of integers and the same to the bit in any order, on every backend.

    Args:
        token_ids: integer ids [T].
        boundaries: integers [S+1] from 0 to T, ascending; what lies before the first and after the last of
            them is in no span.
        registry: the registry (all epochs of all agents), or `Keys`.
        counted: bool [T], the positions to add up; None: all that are scored.
        profile: id of the profile, if the registry has several.
        num_threads: as in `embed_`.

    With a CUDA tensor of ids, `boundaries` is a tensor on its device or a list, `counted` a tensor there.

    Returns:
        float64 [S, K], columns as those of `score_tokens`; on the device of the ids if that is CUDA.

    Raises:
        ShapeError: an argument has a wrong shape or type.
        InputError: `boundaries` are not ascending within the text.

    Deterministic, and the same to the bit on every backend. O(T·K) time, S·K·8 bytes.
    """
    keys = _keys(registry, profile)
    if host.on_cuda(token_ids):
        return cuda_scores.score_spans(load_cuda(), _marking(keys), token_ids, boundaries, counted)  # type: ignore[arg-type]
    ids = check_token_ids(token_ids)
    cuts, mask = host.checked_spans(boundaries, counted, len(ids))
    return keys.sums(ids, cuts, mask, host.checked_threads(num_threads))


def positions(
    token_ids: ArrayLike, registry: Registry | Keys, *, profile: str | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which positions are scored, and which of those repeat an earlier (context, token) pair.

    A repeated pair has the same score under every key as its first occurrence: it is no new evidence. In
    family "gumbel" nothing is a repeat, because seeds count the earlier occurrences of the context.

    Args:
        token_ids: integer ids [T].
        registry: the registry, or a `KeyTable` of it.
        profile: id of the profile, if the registry has several.

    Returns:
        scored bool [T], repeated bool [T] (false where not scored). Expected O(T·n).
    """
    pairs = pair_numbers(token_ids, registry, profile=profile)
    return pairs >= 0, repeats(pairs)


def pair_numbers(
    token_ids: ArrayLike,
    registry: Registry | Keys,
    *,
    counted: NDArray[np.bool_] | None = None,
    profile: str | None = None,
) -> NDArray[np.int64]:
    """Number the (context, token) pairs of a text.

    In family "gumbel" all positions differ, because seeds count the earlier occurrences of the context.

    Args:
        token_ids: integer ids [T].
        registry: the registry, or a `KeyTable` of it.
        counted: bool [T], the positions to number; None: all that are scored.
        profile: id of the profile, if the registry has several.

    Returns:
        int64 [T]: 0, 1, 2, ... in the order of first occurrence, equal for equal pairs, -1 where not scored
        or not counted.

    Expected O(T·n).
    """
    keys = _keys(registry, profile)
    return keys.pairs(Texts.single(check_token_ids(token_ids)), counted)[0]


def permute(token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return P(k_π, v) for pairs of ids and seeds, on the host backend: what known answers are checked with.

    Args:
        token_ids: ids [N] in [0, V).
        seeds: uint64 [N].
        vocab_size: V, 1 to 2^24.

    Raises:
        InputError: an id, a seed or V is out of range.
        ShapeError: seeds are no integers, or neither one nor as many as ids.
    """
    return host.permute(token_ids, seeds, vocab_size)


def permute_cuda(
    token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int, k_p: int = 1
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return P(k_π, v) and the Fourier φ of it, computed on the current CUDA device from host arrays.

    Raises:
        BackendUnavailable: no CUDA module, or no device.
    """
    return cuda_scores.permute(load_cuda(), token_ids, seeds, vocab_size, k_p)


def _check_counts(marking: KernelParams, counts: object) -> None:
    if counts is not None and not marking.counted:
        raise InputError(
            f"counts: got some under family {marking.family!r}, expected none: seeds hold them in family"
            ' "gumbel"'
        )


def _keys(registry: object, profile: str | None) -> Keys:
    """Return the keys that score."""
    check_environment()
    if isinstance(registry, KeyTable):  # faster than the check of a protocol
        return registry
    if isinstance(registry, (Registry, ForeignKeys)):
        return registry.scoring_keys(profile)
    if not isinstance(registry, Keys):
        raise InputError(f"registry: got {type(registry).__name__}, expected iet.Registry")
    return registry


def _marking(keys: Keys) -> KernelParams:
    """Return what a CUDA call takes of keys that score."""
    if not isinstance(keys, KeyTable):
        raise BackendUnavailable(
            "token_ids are on CUDA: schemes of others are read on the CPU; move them with .cpu()"
        )
    return keys.marking


def keys_to_mark_with(registry: object, profile: str | None) -> KeyTable:
    """Return the keys that mark."""
    check_environment()
    if isinstance(registry, Registry):
        return registry.marking_keys(profile)
    if isinstance(registry, KeyTable):
        return registry
    raise InputError(
        f"registry: got {type(registry).__name__}, expected iet.Registry"
        + "; iet.WaterfallLogitsProcessor marks with them" * isinstance(registry, WaterfallKeys)
    )
