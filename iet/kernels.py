"""The ops, on the fastest backend at hand: checked here, then computed by a compiled module or by NumPy."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.marks.foreign.engines import SCHEMES, EngineKeys
from iet.marks.foreign.keys import ForeignKeys
from iet.marks.foreign.waterfall import WaterfallKeys
from iet.marks.keys import KeyTable
from iet.marks.registry import Registry
from iet.marks.scheme import MAX_VOCAB_SIZE
from iet.native import cuda, reference
from iet.native.cuda import is_tensor as _is_tensor
from iet.native.load import Backends, backends, check_environment, load_cuda
from iet.native.load import cpu as _cpu

if TYPE_CHECKING:
    import torch

__all__ = [
    "Backends",
    "backends",
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

_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}


# ---------------------------------------------------------------- embed_


def embed_(
    logits: NDArray[Any] | torch.Tensor,
    contexts: ArrayLike | torch.Tensor,
    slots: ArrayLike | torch.Tensor,
    registry: Registry | KeyTable,
    *,
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
    after temperature and top-p, and do not sample again (docs/gumbel.md; `iet.WatermarkingConfig` does so).

    Args:
        logits: float32, float16 or bfloat16 [B, >= V], a writable numpy array or a torch tensor on the CPU
            or on CUDA; any strides that do not overlap. Changed in place, one rounding per logit.
        contexts: integer ids [B, n-1]: those before the position that is sampled next, oldest first.
        slots: integers [B]: `registry.slot(agent)`, or -1 for an unmarked row.
        registry: the registry, or a `KeyTable` of it.
        profile: id of the profile, where the registry has several.
        temperature: scalar or [B]; κ is multiplied by it. 1 where `logits` are the final ones; where the
            sampler will still divide by a temperature, that temperature.
        rows: integers [M], no number twice: the rows of `logits` that are marked. Contexts, slots and
            temperatures are then [M, n-1], [M] and [M]: entry i is for row `rows[i]`. None: all rows. On CUDA
            a number that stands there twice is not noticed, and its row undefined.
        num_threads: of the CPU, at least 1. None: $IET_NUM_THREADS, or as many cores as the process may use;
            small batches take fewer. It changes no result.

    On CUDA contexts, slots, rows (int32 or int64) and temperatures (float32, or a number) are tensors on the
    device of the logits and are read there when the kernel runs, on the current stream: nothing is
    allocated, copied or waited for, so a call may be captured in a graph (`prepare` the keys before) and
    replayed with new contents. A row that would be refused below is left unmarked there, and
    `raise_if_refused` tells later. Call `prepare` before torch.compile, too.

    Raises:
        ShapeError: wrong shape, dtype, stride or device of an argument.
        InputError: a slot that names no agent, or a negative id in the context of a marked row
            (engines write -1 where the real id is not known yet; hashing it would lose the mark).
        BackendUnavailable: logits on a device for which no kernel is built. Nothing is copied.

    Deterministic, and the same to the bit on every backend, but for the payload of a NaN. O(B·V), for marked
    rows only.
    """
    keys = _own_keys(registry, "marking_keys", profile)
    scheme, vocab_size = keys.profile.scheme, keys.profile.vocab_size
    address, dtype, (logits_rows, columns), strides, array = _describe_logits(logits)
    if columns < vocab_size:
        raise ShapeError(
            "logits", got=f"[{logits_rows}, {columns}]", expected=f"[B, >= {vocab_size}], V of the profile"
        )
    if _is_tensor(logits) and logits.device.type == "cuda":  # type: ignore[union-attr]
        described = (address, _DTYPES[dtype], (logits_rows, columns), strides)
        cuda.embed_(load_cuda(), logits, described, contexts, slots, keys, temperature, rows)  # type: ignore[arg-type]
        return
    index = None if rows is None else _row_index(rows, logits_rows)
    count = logits_rows if index is None else len(index)
    context_ids = _integers("contexts", contexts, np.int64, (count, scheme.n_gram - 1))
    slot_ids = _integers("slots", slots, np.int32, (count,))
    kappas = np.float32(scheme.kappa) * _temperatures(temperature, count)
    threads = _threads(num_threads)
    if count == 0:
        return
    if _cpu is None or index is not None:
        _check_rows(context_ids, slot_ids, kappas, keys)
    if index is not None:  # rows that are not named are unmarked ones, and those cost nothing
        context_ids = _scatter(context_ids, index, logits_rows, 0)
        slot_ids, kappas = _scatter(slot_ids, index, logits_rows, -1), _scatter(kappas, index, logits_rows, 0)

    if _cpu is not None:
        done = _native(keys).embed(
            address,
            _DTYPES[dtype],
            logits_rows,
            columns,
            *strides,
            context_ids.ctypes.data,
            slot_ids.ctypes.data,
            kappas.ctypes.data,
            threads,
        )
        if not done:  # a row is refused, and nothing was written: say which and why
            _check_rows(context_ids, slot_ids, kappas, keys)
        return
    reference.embed_(
        array(),
        context_ids,
        slot_ids,
        kappas,
        **_reference_keys(keys),
    )


def _describe_logits(logits: Any) -> tuple[int, str, tuple[int, int], tuple[int, int], Any]:
    """Return address, dtype, shape, strides in bytes and a function that views the data as numpy."""
    if isinstance(logits, np.ndarray):
        dtype, shape, strides = logits.dtype.name, logits.shape, logits.strides
        if not logits.flags.writeable:
            raise ShapeError("logits", got="a read-only array", expected="a writable one")
        if not logits.dtype.isnative:
            raise ShapeError("logits", got=f"dtype {logits.dtype.str}", expected="the machine's byte order")
        address = logits.__array_interface__["data"][0]
        bits = logits.view(np.uint16) if dtype == "bfloat16" else logits

        def array() -> NDArray[Any]:
            return bits
    elif _is_tensor(logits):
        if logits.device.type == "cuda":
            load_cuda()
        elif logits.device.type != "cpu":
            raise BackendUnavailable(
                f"logits are on {logits.device}: numpy arrays and tensors on the CPU and on CUDA are marked;"
                " nothing is copied between devices silently, so move them with .cpu() first"
            )
        if str(logits.layout) != "torch.strided":
            raise ShapeError("logits", got=f"layout {logits.layout}", expected="a strided tensor")
        if logits.requires_grad:
            raise ShapeError("logits", got="a tensor that requires grad", expected="logits.detach()")
        if logits.is_neg() or (logits.data_ptr() == 0 and logits.numel()):
            raise ShapeError("logits", got="a lazily negated or empty view", expected="logits.clone()")
        dtype = str(logits.dtype).removeprefix("torch.")
        shape = tuple(logits.shape)
        strides = tuple(stride * logits.element_size() for stride in logits.stride())
        address = logits.data_ptr()

        def array() -> NDArray[Any]:
            import torch

            return np.asarray((logits.view(torch.uint16) if dtype == "bfloat16" else logits).numpy())
    else:
        raise ShapeError("logits", got=type(logits).__name__, expected="numpy.ndarray or torch.Tensor")
    if dtype not in _DTYPES:
        raise ShapeError("logits", got=f"dtype {dtype}", expected=f"one of {', '.join(_DTYPES)}")
    if len(shape) != 2:
        raise ShapeError("logits", got=f"shape {list(shape)}", expected="[B, >= V]")
    rows, columns = shape
    size = 4 if dtype == "float32" else 2
    row_stride, element_stride = strides
    row, element = abs(row_stride), abs(element_stride)
    still = (rows > 1 and row == 0) or (columns > 1 and element == 0)  # an expanded dimension
    apart = rows < 2 or row >= element * (columns - 1) + size or element >= row * (rows - 1) + size
    if rows and (still or not apart or element % size or row % size):
        raise ShapeError(
            "logits", got=f"strides {strides} in bytes", expected="rows and columns that do not overlap"
        )
    if address % size:
        raise ShapeError(
            "logits", got=f"an address {address % size} past a multiple of {size}", expected="one"
        )
    return address, dtype, (rows, columns), (row_stride, element_stride), array


def _row_index(rows: Any, logits_rows: int) -> NDArray[np.int64]:
    index = _integers("rows", rows, np.int64, (len(rows),) if np.ndim(rows) else ())
    if index.ndim != 1:
        raise ShapeError("rows", got=f"shape {list(index.shape)}", expected="[M]")
    if index.size and (index.min() < 0 or index.max() >= logits_rows):
        raise InputError(f"rows: got {index.min()} to {index.max()}, expected 0 to {logits_rows - 1}")
    if len(np.unique(index)) < len(index):
        raise InputError("rows: got a row twice, expected each at most once")
    return index


def _scatter(values: NDArray[Any], index: NDArray[np.int64], rows: int, rest: int) -> NDArray[Any]:
    everywhere = np.full((rows, *values.shape[1:]), rest, dtype=values.dtype)
    everywhere[index] = values
    return everywhere


def prepare(registry: Registry | KeyTable, device: torch.device | str, *, profile: str | None = None) -> None:
    """Put the marking keys of a registry on a CUDA device, which must not wait until a graph is captured.

    Derived keys only, once per registry and device; any call of `embed_` outside a capture does the same.
    What a captured graph uses stays on the device for the life of the process. When a key is rotated, prepare
    and capture again: a graph keeps the keys that it was captured with.

    Args:
        registry: the registry, or a `KeyTable` of it.
        device: a CUDA device.
        profile: id of the profile, where the registry has several.

    Raises:
        BackendUnavailable: no CUDA module, or `device` is not a CUDA device.
    """
    where = _cuda_device(device)
    cuda.table(load_cuda(), _own_keys(registry, "marking_keys", profile), where)


def raise_if_refused(device: torch.device | str) -> None:
    """Raise what `embed_` refused on a CUDA device since the last call: it cannot raise while it runs there.

    Waits for the device's current stream: call it where that is waited for anyway, as when a request ends.

    Raises:
        InputError: a marked row held a negative id in its context, or a slot, row or temperature out of
            range. Such rows were left unmarked.
        BackendUnavailable: no CUDA module, or `device` is not a CUDA device.
    """
    where = _cuda_device(device)
    cuda.raise_if_refused(where)


def _cuda_device(device: torch.device | str) -> torch.device:
    import torch

    where = torch.device(device)
    if where.type != "cuda":
        raise BackendUnavailable(f"device: got {where}, expected a CUDA device")
    module = load_cuda()
    if module.device_count() == 0:
        raise BackendUnavailable(
            f"device: got {where}, expected one of the {module.device_count()} CUDA devices of this machine"
        )
    return where if where.index is not None else torch.device("cuda", torch.cuda.current_device())


def _integers(name: str, values: Any, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    if _is_tensor(values):
        if values.device.type != "cpu":
            raise ShapeError(name, got=f"device {values.device}", expected="the device of the logits, cpu")
        if values.is_floating_point():
            raise ShapeError(name, got=f"dtype {values.dtype}", expected="integers")
        values = values.numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ShapeError(name, got=f"dtype {array.dtype}", expected="integers")
    if array.shape != shape:
        raise ShapeError(name, got=f"shape {list(array.shape)}", expected=f"{list(shape)}")
    return _cast(name, array, dtype)


def _cast(name: str, array: NDArray[Any], dtype: type) -> NDArray[Any]:
    if array.size and not np.can_cast(array.dtype, dtype):
        limits = np.iinfo(dtype)
        if array.max() > limits.max or array.min() < limits.min:
            raise InputError(
                f"{name}: got {array.max()} and {array.min()}, expected {np.dtype(dtype)} values"
            )
    return np.ascontiguousarray(array, dtype=dtype)


def _temperatures(temperature: ArrayLike, rows: int) -> NDArray[np.float32]:
    try:
        values = np.asarray(temperature, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError):  # the last by tensors that NumPy cannot read
        raise InputError(f"temperature: got {temperature!r}, expected a number or [B]") from None
    if values.shape not in ((), (rows,)):
        raise ShapeError("temperature", got=f"shape {list(values.shape)}", expected=f"a number or [{rows}]")
    return np.ascontiguousarray(values) if values.shape else np.full(rows, values)


def _check_rows(
    contexts: NDArray[np.int64], slots: NDArray[np.int32], kappas: NDArray[np.float32], keys: KeyTable
) -> None:
    if slots.min() < -1 or slots.max() >= len(keys):
        bad = int(np.flatnonzero((slots < -1) | (slots >= len(keys)))[0])
        raise InputError(
            f"slots: row {bad} holds {slots[bad]}, expected -1 or a slot from 0 to {len(keys) - 1}"
        )
    if contexts.min() < 0:
        rows = np.flatnonzero((contexts < 0).any(axis=1) & (slots >= 0))
        if len(rows):
            raise InputError(
                f"contexts: row {rows[0]} holds the id {contexts[rows[0]].min()}: a placeholder, not a token;"
                " expected the ids that were sampled"
            )
    marked = kappas[slots >= 0]
    if marked.size and not (marked.min() >= 0 and marked.max() < np.inf):  # false for NaN too
        raise InputError(
            f"temperature: gives κ = {marked.min()}..{marked.max()}, expected finite values of at least 0"
        )


# ---------------------------------------------------------------- score_tokens


def score_tokens(
    token_ids: ArrayLike | torch.Tensor,
    registry: Registry | KeyTable | ForeignKeys | None = None,
    *,
    profile: str | None = None,
    scheme: str | None = None,
    keys: Sequence[int] | None = None,
    vocab_size: int | None = None,
    n_gram: int | None = None,
    k_p: int | None = None,
    num_threads: int | None = None,
    **parameters: Any,
) -> Any:
    """Score every position of a text under every key: x_j(a) = k_p(a)[P(k_π^(j), y_j)] (§ Agent Attribution).

    Either under the keys of a registry, or under those of another scheme, which is named:
    `score_tokens(token_ids, scheme="waterfall", keys=[42], vocab_size=V)` scores text that the public
    Waterfall package marked, with the package's numbers: φ(RandomState((id, *context)).permutation(V)[y_j]).
    See docs/waterfall.md; the mean of a column is the package's `q_score`. Text that a serving engine marked
    is scored likewise: `score_tokens(token_ids, scheme="vllm-gumbel", keys=[42])`, see docs/engines.md.

    Args:
        token_ids: integer ids [T]; a CUDA tensor (int32 or int64) is scored where it lies.
        registry: the registry (all epochs of all agents), a `KeyTable` of it, `WaterfallKeys` or
            `EngineKeys`.
        profile: id of the profile, where the registry has several.
        scheme: "waterfall" or a key of `iet.marks.foreign.engines.SCHEMES`, in place of a registry.
        keys: the keys [K] of that scheme: of "waterfall" integer ids, 0 to 2^32 - 1, of the others see
            `EngineKeys`, here without agents.
        vocab_size: its V: of "waterfall" the tokenizer's vocabulary without added tokens, 3 to 2^24, of "kgw"
            that of the model's config; of the others None will do.
        n_gram: its n; None: 2 under "waterfall", else the engine's default.
        k_p: the frequency of "waterfall": 1 to ⌊(V-1)/2⌋ for a cosine, above that, up to twice that, for a
            sine; 1 if None.
        num_threads: as in `embed_`.
        **parameters: of the scheme of an engine, see `EngineKeys`.

    Returns:
        [T, K] in [-1, 1], in family `gumbel` -log(1 - u), which is above 0 and on average 1 without a mark;
        0 where a position is not scored (see `positions`): a numpy array, or for a CUDA
        tensor one on its device, queued on the current stream. Columns follow
        `registry.scoring_keys(profile)`: several for an agent whose key was rotated. float32; float64 under
        scheme `waterfall`, as in the package. There a context with an id at or above V, after which the
        package marks with the identity permutation whatever the id, gives φ(y_j) under every key: it is in
        the scores, as in the package's, but tells nobody apart, so `positions` does not count it as scored.
        Under the scheme of an engine float32, see docs/engines.md.

    Raises:
        ShapeError: `token_ids` is not one-dimensional or not integer.
        InputError: both or neither of registry and scheme, or a value of the scheme is out of range.
        BackendUnavailable: a CUDA tensor without the CUDA module, or under a scheme that is not ours.

    Deterministic, and the same to the bit on every backend. O(T·K); under schemes `waterfall` and `kgw`
    O(V·K) for every distinct context (see docs/waterfall.md for how long that is).
    """
    table: KeyTable | ForeignKeys
    if scheme is not None:
        if registry is not None or profile is not None or keys is None:
            raise InputError("score_tokens: expected either a registry, or scheme and keys")
        table = _keys_of_scheme(scheme, keys, vocab_size=vocab_size, n_gram=n_gram, k_p=k_p, **parameters)
    elif registry is None or parameters or any(x is not None for x in (keys, vocab_size, n_gram, k_p)):
        raise InputError(
            "score_tokens: expected either a registry, whose profile holds n_gram and k_p, or scheme, keys"
            " and vocab_size"
        )
    else:
        table = _keys(registry, "scoring_keys", profile)
    if _is_tensor(token_ids) and token_ids.device.type == "cuda":  # type: ignore[union-attr]
        return cuda.score_tokens(load_cuda(), token_ids, _on_cuda(table))  # type: ignore[arg-type]
    ids, threads = check_token_ids(token_ids), _threads(num_threads)
    if isinstance(table, ForeignKeys):
        return table.scores(ids, threads)
    return _score_keyed(ids, table, threads)


def _keys_of_scheme(scheme: Any, keys: Any, **parameters: Any) -> ForeignKeys:
    """Return keys without agents, from the arguments of `score_tokens`."""
    known = ["waterfall", *SCHEMES]
    if scheme not in known:
        raise InputError(f"scheme: got {scheme!r:.80}, expected one of {sorted(known)}")
    if isinstance(keys, str) or not isinstance(keys, (Sequence, np.ndarray)):
        got = f"{keys!r:.80}" if scheme == "waterfall" else f"a {type(keys).__name__}"  # others are secrets
        raise InputError(f"keys: got {got}, expected a list of keys [K]")
    given = {name: value for name, value in parameters.items() if value is not None}
    if scheme != "waterfall":
        return EngineKeys(scheme, {f"key {i}": key for i, key in enumerate(keys)}, **given)
    if "vocab_size" not in given:
        raise InputError("vocab_size: got none, expected V: the permutations depend on it")
    names = {str(key): key for key in keys}
    if len(names) < len(keys):
        raise InputError("keys: got an id twice, expected distinct ids")
    for name in given.keys() - {"vocab_size", "n_gram", "k_p"}:
        raise InputError(f"{name}: scheme 'waterfall' has no such parameter, expected n_gram or k_p")
    return WaterfallKeys(names, **given)


def _score_keyed(ids: NDArray[np.int64], keys: KeyTable, threads: int) -> NDArray[np.float32]:
    if _cpu is None:
        return reference.score_tokens(
            ids,
            keys.profile.scheme.n_gram,
            **_reference_keys(keys),
        )
    scores = np.empty((len(ids), len(keys)), dtype=np.float32)
    _native(keys).score(ids.ctypes.data, len(ids), scores.ctypes.data, threads)
    return scores


def score_spans(
    token_ids: ArrayLike | torch.Tensor,
    boundaries: ArrayLike | torch.Tensor,
    registry: Registry | KeyTable | ForeignKeys,
    *,
    counted: ArrayLike | torch.Tensor | None = None,
    profile: str | None = None,
    num_threads: int | None = None,
) -> Any:
    """Sum the scores of every key over consecutive spans of a text, without making [T, K].

        sums[s, a] = Σ x_j(a) over the j of [boundaries[s], boundaries[s+1]) that are scored and counted

    Each score is rounded to a multiple of 2^-22 before it is added (φ itself is good to 7.4e-7), so that the
    sum is one of integers and the same to the bit in any order, on every backend.

    Args:
        token_ids: integer ids [T].
        boundaries: integers [S+1] from 0 to T, ascending; what lies before the first and after the last of
            them is in no span.
        registry: the registry (all epochs of all agents), or a `KeyTable` of it.
        counted: bool [T], the positions to add up; None: all that are scored.
        profile: id of the profile, where the registry has several.
        num_threads: as in `embed_`.

    With a CUDA tensor of ids, `boundaries` is a tensor on its device or a list, `counted` a tensor there.

    Returns:
        float64 [S, K], columns as those of `score_tokens`; on the device of the ids if that is CUDA.

    Raises:
        ShapeError: an argument has a wrong shape or type.
        InputError: `boundaries` are not ascending within the text.

    Deterministic, and the same to the bit on every backend. O(T·K) time, S·K·8 bytes.
    """
    keys = _keys(registry, "scoring_keys", profile)
    if _is_tensor(token_ids) and token_ids.device.type == "cuda":  # type: ignore[union-attr]
        return cuda.score_spans(load_cuda(), token_ids, boundaries, counted, _on_cuda(keys))  # type: ignore[arg-type]
    ids = check_token_ids(token_ids)
    cuts = np.asarray(boundaries)
    if cuts.ndim != 1 or len(cuts) == 0 or cuts.dtype.kind not in "iu":
        raise ShapeError("boundaries", got=f"{cuts.dtype} {list(cuts.shape)}", expected="integers [S+1]")
    cuts = _cast("boundaries", cuts, np.int64)
    if cuts[0] < 0 or cuts[-1] > len(ids) or (np.diff(cuts) < 0).any():
        raise InputError(
            f"boundaries: got {cuts[:8].tolist()} to {cuts[-1]}, expected ascending from 0 to {len(ids)}"
        )
    mask = np.ones(len(ids), np.bool_) if counted is None else np.asarray(counted)
    if mask.shape != ids.shape or mask.dtype != np.bool_:
        raise ShapeError("counted", got=f"{mask.dtype} {list(mask.shape)}", expected=f"bool [{len(ids)}]")
    threads = _threads(num_threads)
    if isinstance(keys, ForeignKeys):
        return keys.sums(ids, cuts, mask, threads)
    if _cpu is not None:
        mask = np.ascontiguousarray(mask)
        units = np.zeros((len(cuts) - 1, len(keys)), dtype=np.int64)
        _native(keys).score_spans(
            ids.ctypes.data, mask.ctypes.data, cuts.ctypes.data, len(units), units.ctypes.data, threads
        )
        return np.multiply(units, reference.SPAN_UNIT, dtype=np.float64)
    return reference.score_spans(
        ids,
        cuts,
        mask,
        keys.profile.scheme.n_gram,
        **_reference_keys(keys),
    )


def positions(
    token_ids: ArrayLike, registry: Registry | KeyTable | ForeignKeys, *, profile: str | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which positions are scored, and which of those repeat an earlier (context, token) pair.

    A repeated pair has the same score under every key as its first occurrence: it is no new evidence. In
    family "gumbel" every token after a context that stood before is a repeat: it carries no mark.

    Args:
        token_ids: integer ids [T].
        registry: the registry, or a `KeyTable` of it.
        profile: id of the profile, where the registry has several.

    Returns:
        scored bool [T], repeated bool [T] (false where not scored). Expected O(T·n).
    """
    from iet.native.pairs import repeats  # here, because it imports numba

    pairs = pair_numbers(token_ids, registry, profile=profile)
    return pairs >= 0, repeats(pairs)


def pair_numbers(
    token_ids: ArrayLike,
    registry: Registry | KeyTable | ForeignKeys,
    *,
    counted: NDArray[np.bool_] | None = None,
    profile: str | None = None,
) -> NDArray[np.int64]:
    """Number the (context, token) pairs of a text.

    In family "gumbel" the contexts are numbered instead: only the first token after a context carries a mark.

    Args:
        token_ids: integer ids [T].
        registry: the registry, or a `KeyTable` of it.
        counted: bool [T], the positions to number; None: all that are scored.
        profile: id of the profile, where the registry has several.

    Returns:
        int64 [T]: 0, 1, 2, ... in the order of first occurrence, equal for equal pairs, -1 where not scored
        or not counted.

    Expected O(T·n).
    """
    from iet.native.pairs import number_pairs  # here, because it imports numba

    keys = _keys(registry, "scoring_keys", profile)
    ids = check_token_ids(token_ids)
    if isinstance(keys, ForeignKeys):
        scored = keys.scored(ids)
        return keys.pair_numbers(ids, scored if counted is None else scored & counted)
    n_gram = keys.profile.scheme.n_gram
    scored = reference.is_scored(ids, n_gram, keys.profile.vocab_size, keys.profile.unmarked_ids)
    counting = scored if counted is None else scored & counted
    return number_pairs(ids, counting, n_gram, contexts=keys.profile.scheme.family == "gumbel")


def permute(token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return P(k_π, v) for pairs of ids and seeds, on the host backend: what known answers are checked with.

    Args:
        token_ids: ids [N] in [0, V).
        seeds: uint64 [N].
        vocab_size: V, 1 to 2^24.

    Raises:
        InputError: an id or V is out of range.
    """
    check_environment()
    ids, seeds = _permutation_input(token_ids, seeds, vocab_size)
    if _cpu is None:
        return reference.permute(ids, seeds, vocab_size).astype(np.uint32)
    ranks = np.empty(len(ids), dtype=np.uint32)
    _cpu.permute(vocab_size, seeds.ctypes.data, ids.ctypes.data, len(ids), ranks.ctypes.data)
    return ranks


def permute_cuda(
    token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int, k_p: int = 1
) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
    """Return P(k_π, v) and the Fourier φ of it, computed on the current CUDA device from host arrays.

    Raises:
        BackendUnavailable: no CUDA module, or no device.
    """
    module = load_cuda()
    if module.device_count() == 0:
        raise BackendUnavailable(f"CUDA: the driver shows no device ({module.device_error()})")
    ids, seeds = _permutation_input(token_ids, seeds, vocab_size)
    if len(ids) == 0:
        return np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.float32)
    ranks, phis = np.empty(len(ids), dtype=np.uint32), np.empty(len(ids), dtype=np.float32)
    module.permute(
        vocab_size, k_p, seeds.ctypes.data, ids.ctypes.data, len(ids), ranks.ctypes.data, phis.ctypes.data
    )
    return ranks, phis


def _permutation_input(
    token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    if not 1 <= vocab_size <= MAX_VOCAB_SIZE:
        raise InputError(f"vocab_size: got {vocab_size}, expected 1 to {MAX_VOCAB_SIZE}")
    ids = check_token_ids(token_ids)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise InputError(f"token_ids: got {ids.min()} to {ids.max()}, expected 0 to {vocab_size - 1}")
    wide = np.ascontiguousarray(np.broadcast_to(np.asarray(seeds, dtype=np.uint64), ids.shape))
    return ids.astype(np.uint32), wide


def _keys(
    registry: object, which: Literal["marking_keys", "scoring_keys"], profile: str | None
) -> KeyTable | ForeignKeys:
    if isinstance(registry, ForeignKeys):
        return registry.scoring_keys(profile)
    return _own_keys(registry, which, profile)


def _on_cuda(keys: KeyTable | ForeignKeys) -> KeyTable:
    if isinstance(keys, ForeignKeys):
        raise BackendUnavailable(
            "token_ids are on CUDA: schemes of others are read on the CPU; move them with .cpu()"
        )
    return keys


def _own_keys(
    registry: object, which: Literal["marking_keys", "scoring_keys"], profile: str | None
) -> KeyTable:
    check_environment()
    if isinstance(registry, Registry):
        return registry.marking_keys(profile) if which == "marking_keys" else registry.scoring_keys(profile)
    if isinstance(registry, ForeignKeys):
        raise InputError(
            f"registry: got {type(registry).__name__}, expected iet.Registry"
            + "; iet.WaterfallLogitsProcessor marks with them" * isinstance(registry, WaterfallKeys)
        )
    if not isinstance(registry, KeyTable):
        raise InputError(f"registry: got {type(registry).__name__}, expected iet.Registry")
    return registry


def _reference_keys(keys: KeyTable) -> dict[str, Any]:
    """Return what every op of `reference` takes of a key table."""
    profile = keys.profile
    return {
        "subkeys": keys.subkeys,
        "k_p": keys.k_p,
        "vocab_size": profile.vocab_size,
        "family": profile.scheme.family,
        "unmarked_ids": profile.unmarked_ids,
    }


def _threads(num_threads: int | None) -> int:
    """Return what the native modules take: 0 for the default."""
    check_environment()
    if num_threads is None:
        return 0
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise InputError(f"num_threads: got {num_threads!r}, expected an int of at least 1, or None")
    return min(num_threads, 1 << 16)


def check_token_ids(values: Any) -> NDArray[np.int64]:
    """Return the ids of a text as int64 [T].

    Raises:
        ShapeError: they are not a vector of integers.
        InputError: one is beyond int64.
    """
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise ShapeError("token_ids", got="rows of different lengths", expected="integers [T]") from None
    if array.ndim != 1:
        raise ShapeError("token_ids", got=f"shape {list(array.shape)}", expected="[T]")
    if array.dtype.kind not in "iu" and array.size:
        raise ShapeError("token_ids", got=f"dtype {array.dtype}", expected="integers")
    return _cast("token_ids", array, np.int64)


# The native form of a key table, with the arrays that it points into. Key tables do not change.
_natives: weakref.WeakKeyDictionary[KeyTable, tuple[Any, list[NDArray[Any]]]] = weakref.WeakKeyDictionary()


def _native(keys: KeyTable) -> Any:
    cached = _natives.get(keys)
    if cached is None:
        profile = keys.profile
        unmarked = np.array(profile.unmarked_ids, dtype=np.int32)
        subkeys = np.ascontiguousarray(keys.subkeys).view("<u8").astype(np.uint64)
        k_p = keys.k_p.astype(np.uint32)
        assert _cpu is not None
        marking = _cpu.Marking(
            profile.vocab_size,
            profile.scheme.n_gram,
            profile.family.code,
            unmarked.ctypes.data,
            len(unmarked),
            subkeys.ctypes.data,
            k_p.ctypes.data,
            len(keys),
        )
        made: tuple[Any, list[NDArray[Any]]] = (marking, [unmarked, subkeys, k_p])
        # The first one stays: another thread may be at work with the arrays that it points into.
        cached = _natives.setdefault(keys, made)
    return cached[0]
