"""The ops on the host: arguments are checked here, then the compiled module computes, or NumPy."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.errors import BackendUnavailable, InputError, ShapeError, shown
from iet.native import reference
from iet.native.filters import checked_filters
from iet.native.load import check_environment, cpu, load_cuda
from iet.native.marking import MAX_VOCAB_SIZE, KernelParams

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
"""Of logits, and the numbers that the native modules know them by."""


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor, without importing torch: its owner has imported it."""
    kind: Any = type(value)
    return _is_tensor_class(kind)


@functools.cache
def _is_tensor_class(kind: Any) -> bool:
    return any(cls.__module__ == "torch" and cls.__name__ == "Tensor" for cls in kind.__mro__)


def on_cuda(values: Any) -> bool:
    """Tell whether this is a tensor on a CUDA device."""
    return is_tensor(values) and values.device.type == "cuda"


# ---------------------------------------------------------------- logits


class Logits(NamedTuple):
    """Where logits lie [rows, columns >= V], and how.

    Attributes:
        layout: what a native call takes first: address, number of the dtype, rows, columns, strides in bytes.
        rows: their number.
        array: returns them as numpy shows them, bfloat16 as its bits; not on CUDA.
        device: of CUDA, or None.
    """

    layout: tuple[int, int, int, int, int, int]
    rows: int
    array: Callable[[], NDArray[Any]]
    device: Any = None


def describe_logits(logits: Any, vocab_size: int) -> Logits:
    """Return the layout of logits in memory.

    Raises:
        ShapeError: they are not [B, >= V] of a dtype and with strides that can be marked.
        BackendUnavailable: they are on another device than the CPU or CUDA, or on CUDA without its module.
    """
    if isinstance(logits, np.ndarray):
        described = _describe_array(logits)
    elif is_tensor(logits):
        described = _describe_tensor(logits)
    else:
        raise ShapeError("logits", got=type(logits).__name__, expected="numpy.ndarray or torch.Tensor")
    rows, columns = described.layout[2:4]
    if columns < vocab_size:
        raise ShapeError(
            "logits", got=f"[{rows}, {columns}]", expected=f"[B, >= {vocab_size}], V of the profile"
        )
    return described


def _describe_array(logits: NDArray[Any]) -> Logits:
    if not logits.flags.writeable:
        raise ShapeError("logits", got="a read-only array", expected="a writable one")
    if not logits.dtype.isnative:
        raise ShapeError("logits", got=f"dtype {logits.dtype.str}", expected="the machine's byte order")
    address, dtype = logits.__array_interface__["data"][0], logits.dtype.name
    bits = logits.view(np.uint16) if dtype == "bfloat16" else logits
    return _checked(address, dtype, logits.shape, logits.strides, lambda: bits)


def _describe_tensor(logits: Any) -> Logits:
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

    def array() -> NDArray[Any]:
        import torch

        return np.asarray((logits.view(torch.uint16) if dtype == "bfloat16" else logits).numpy())

    strides = tuple(stride * logits.element_size() for stride in logits.stride())
    described = _checked(logits.data_ptr(), dtype, tuple(logits.shape), strides, array)
    return described._replace(device=logits.device) if logits.device.type == "cuda" else described


def _checked(
    address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], array: Callable[[], Any]
) -> Logits:
    code = DTYPES.get(dtype)
    if code is None:
        raise ShapeError("logits", got=f"dtype {dtype}", expected=f"one of {', '.join(DTYPES)}")
    if len(shape) != 2:
        raise ShapeError("logits", got=f"shape {list(shape)}", expected="[B, >= V]")
    rows, columns = shape
    size = 4 if dtype == "float32" else 2
    row_stride, element_stride = strides
    row, element = abs(row_stride), abs(element_stride)
    still = (rows > 1 and row == 0) or (columns > 1 and element == 0)  # an expanded dimension
    separate = rows < 2 or row >= element * (columns - 1) + size or element >= row * (rows - 1) + size
    if rows and (still or not separate or element % size or row % size):
        raise ShapeError(
            "logits", got=f"strides {strides} in bytes", expected="rows and columns that do not overlap"
        )
    if address % size:
        raise ShapeError(
            "logits", got=f"an address {address % size} past a multiple of {size}", expected="one"
        )
    return Logits((address, code, rows, columns, row_stride, element_stride), rows, array)


# ---------------------------------------------------------------- the ops


# The native form of a marking, with the arrays that it points into.
_natives: weakref.WeakKeyDictionary[KernelParams, tuple[Any, list[NDArray[Any]]]] = (
    weakref.WeakKeyDictionary()
)


def native(marking: KernelParams) -> Any:
    """Return the native form of a marking, made once."""
    cached = _natives.get(marking)
    if cached is None:
        unmarked = np.array(marking.unmarked_ids, dtype=np.int32)
        words, k_p = marking.subkey_words, marking.k_p.astype(np.uint32)
        assert cpu is not None
        native = cpu.KernelParams(
            marking.vocab_size,
            marking.n_gram,
            marking.code,
            unmarked.ctypes.data,
            len(unmarked),
            words.ctypes.data,
            k_p.ctypes.data,
            len(marking),
        )
        # The first one stays: another thread may be at work with the arrays that it points into.
        cached = _natives.setdefault(marking, (native, [unmarked, words, k_p]))
    return cached[0]


def refresh_keys(marking: KernelParams) -> None:
    """Copy changed keys into the native form of a marking. No other call may run at the same time."""
    cached = _natives.get(marking)
    if cached is not None:
        _, words, k_p = cached[1]
        words[:], k_p[:] = marking.subkey_words, marking.k_p


class _Rows(NamedTuple):
    """The checked arguments of rows of logits, one entry for each row of the logits."""

    contexts: NDArray[np.int64]
    slots: NDArray[np.int32]
    kappas: NDArray[np.float32]
    times: NDArray[np.int32] | None
    threads: int

    @classmethod
    def of(
        cls,
        marking: KernelParams,
        logits: Logits,
        contexts: Any,
        slots: Any,
        counts: Any,
        temperature: Any,
        rows: Any,
        num_threads: int | None,
    ) -> _Rows:
        index = None if rows is None else _row_index(rows, logits.rows)
        count = logits.rows if index is None else len(index)
        context_ids = _integers("contexts", contexts, np.int64, (count, marking.n_gram - 1))
        slot_ids = _integers("slots", slots, np.int32, (count,))
        times = None if counts is None else _integers("counts", counts, np.int32, (count,))
        kappas = np.float32(marking.kappa) * _temperatures(temperature, count)
        threads = checked_threads(num_threads)
        if times is not None and count and times.min() < 0:
            row = int(np.flatnonzero(times < 0)[0])
            raise InputError(f"counts: row {row} holds {times[row]}, expected at least 0")
        if count and (cpu is None or index is not None):
            _check_rows(context_ids, slot_ids, kappas, len(marking))
        if index is not None:  # rows that are not named are unmarked ones, and those cost nothing
            context_ids = _scatter(context_ids, index, logits.rows, 0)
            slot_ids = _scatter(slot_ids, index, logits.rows, -1)
            kappas = _scatter(kappas, index, logits.rows, 0)
            times = None if times is None else _scatter(times, index, logits.rows, 0)
        return cls(context_ids, slot_ids, kappas, times, threads)

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        arrays = self.contexts.ctypes.data, self.slots.ctypes.data, self.kappas.ctypes.data
        return (*arrays, _address(self.times))


def embed_(
    marking: KernelParams,
    logits: Logits,
    contexts: Any,
    slots: Any,
    counts: Any,
    temperature: Any,
    rows: Any,
    num_threads: int | None,
) -> None:
    """Mark logits on the host in place: `iet.embed_`."""
    of_rows = _Rows.of(marking, logits, contexts, slots, counts, temperature, rows, num_threads)
    if cpu is None:
        reference.embed_(marking, logits.array(), *of_rows[:4])
    elif logits.rows and not native(marking).embed(*logits.layout, *of_rows.addresses, of_rows.threads):
        # Nothing was written: say which row and why.
        _check_rows(of_rows.contexts, of_rows.slots, of_rows.kappas, len(marking))
        raise AssertionError("embed_: the compiled module refused rows in which nothing is wrong")


def choose(
    marking: KernelParams,
    logits: Logits,
    contexts: Any,
    slots: Any,
    counts: Any,
    temperature: Any,
    filters: NDArray[Any] | None,
    force: bool,
    num_threads: int | None,
) -> NDArray[np.int64]:
    """Choose tokens on the host: `iet.kernels.choose`."""
    of_rows = _Rows.of(marking, logits, contexts, slots, counts, temperature, None, num_threads)
    records = checked_filters(filters, logits.rows)
    chosen = np.full(logits.rows, -1)
    if cpu is None:
        _choose_by_reference(marking, logits, of_rows, records, force, chosen)
    else:
        options = (0 if records is None else records.ctypes.data), force, chosen.ctypes.data
        if not native(marking).choose(*logits.layout, *of_rows.addresses, *options, of_rows.threads):
            _check_rows(of_rows.contexts, of_rows.slots, of_rows.kappas, len(marking))
            raise AssertionError("choose: the compiled module refused rows in which nothing is wrong")
    return chosen


def _choose_by_reference(
    marking: KernelParams,
    logits: Logits,
    of_rows: _Rows,
    records: NDArray[Any] | None,
    force: bool,
    chosen: NDArray[np.int64],
) -> None:
    array = logits.array()
    is_bfloat16 = array.dtype == np.uint16
    floats = reference.bfloat16_to_float32(array) if is_bfloat16 else array.astype(np.float32)
    chosen[:] = reference.choose(marking, floats, *of_rows[:4], records)
    if not force:
        return
    for row in np.flatnonzero(chosen >= 0):
        largest = float.fromhex("0x1.fep127") if is_bfloat16 else float(np.finfo(array.dtype).max)
        forced = reference.forced_logit(np.nanmax(floats[row]), of_rows.kappas[row], largest)
        as_bits = reference.float32_to_bfloat16(np.array([forced]))[0] if is_bfloat16 else forced
        array[row, chosen[row]] = as_bits


def score_tokens(
    marking: KernelParams, token_ids: NDArray[np.int64], counts: NDArray[np.int32] | None, num_threads: int
) -> NDArray[np.float32]:
    """Return x_j(a), float32 [T, K]: `iet.score_tokens`, of checked arguments.

    `counts` [T], if the marking is `counted`: the number of earlier occurrences of each context.
    """
    if cpu is None:
        return reference.score_tokens(marking, token_ids, counts)
    scores = np.empty((len(token_ids), len(marking)), dtype=np.float32)
    addresses = token_ids.ctypes.data, _address(counts)
    native(marking).score(*addresses, len(token_ids), scores.ctypes.data, num_threads)
    return scores


def score_spans(
    marking: KernelParams,
    token_ids: NDArray[np.int64],
    cuts: NDArray[np.int64],
    counted: NDArray[np.bool_] | NDArray[np.uint8],
    counts: NDArray[np.int32] | None,
    num_threads: int,
) -> NDArray[np.float64]:
    """Return sums over spans, float64 [S, K]: `iet.score_spans`, of checked arguments; see `score_tokens`."""
    if cpu is None:
        return reference.score_spans(marking, token_ids, cuts, counted, counts)
    weights = np.ascontiguousarray(counted)
    units = np.zeros((len(cuts) - 1, len(marking)), dtype=np.int64)
    addresses = token_ids.ctypes.data, _address(counts), weights.ctypes.data, cuts.ctypes.data
    native(marking).score_spans(*addresses, len(units), units.ctypes.data, num_threads)
    return np.multiply(units, reference.SPAN_UNIT, dtype=np.float64)


def _address(values: NDArray[np.int32] | None) -> int:
    return 0 if values is None else int(values.ctypes.data)


def permute(token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return P(k_π, v) of pairs of ids and seeds: `iet.kernels.permute`."""
    check_environment()
    ids, seeds = checked_pairs(token_ids, seeds, vocab_size)
    if cpu is None:
        return reference.permute(ids, seeds, vocab_size).astype(np.uint32)
    ranks = np.empty(len(ids), dtype=np.uint32)
    cpu.permute(vocab_size, seeds.ctypes.data, ids.ctypes.data, len(ids), ranks.ctypes.data)
    return ranks


# ---------------------------------------------------------------- arguments


def check_token_ids(values: Any) -> NDArray[np.int64]:
    """Return the ids of a text as int64 [T].

    Raises:
        ShapeError: they are not a vector of integers.
        InputError: one is beyond int64.
    """
    array = _as_array("token_ids", values, "integers [T]")
    if array.ndim != 1:
        raise ShapeError("token_ids", got=f"shape {list(array.shape)}", expected="[T]")
    if array.dtype.kind not in "iu" and array.size:
        raise ShapeError("token_ids", got=f"dtype {array.dtype}", expected="integers")
    return _cast("token_ids", array, np.int64)


def checked_spans(boundaries: Any, counted: Any, length: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the boundaries of spans in a text of `length` tokens, and which tokens count.

    Raises:
        ShapeError: one of them has a wrong shape or type.
        InputError: the boundaries do not ascend within the text.
    """
    cuts = _as_array("boundaries", boundaries, "integers [S+1]")
    if cuts.ndim != 1 or len(cuts) == 0 or cuts.dtype.kind not in "iu":
        raise ShapeError("boundaries", got=f"{cuts.dtype} {list(cuts.shape)}", expected="integers [S+1]")
    cuts = _cast("boundaries", cuts, np.int64)
    if cuts[0] < 0 or cuts[-1] > length or (cuts[1:] < cuts[:-1]).any():
        raise InputError(
            f"boundaries: got {cuts[:8].tolist()} to {cuts[-1]}, expected ascending from 0 to {length}"
        )
    mask = np.ones(length, np.bool_) if counted is None else _as_array("counted", counted, f"bool [{length}]")
    if mask.shape != (length,) or mask.dtype != np.bool_:
        raise ShapeError("counted", got=f"{mask.dtype} {list(mask.shape)}", expected=f"bool [{length}]")
    return cuts, mask


def checked_threads(num_threads: int | None) -> int:
    """Return what the native modules take: 0 for the default.

    Raises:
        InputError: it is neither None nor an int of at least 1.
    """
    check_environment()
    if num_threads is None:
        return 0
    if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 1:
        raise InputError(f"num_threads: got {num_threads!r}, expected an int of at least 1, or None")
    return min(num_threads, 1 << 16)


def checked_pairs(
    token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Return ids in [0, V) and as many seeds.

    Raises:
        InputError: an id, a seed or V is out of range.
        ShapeError: seeds are neither one nor as many as ids.
    """
    if not 1 <= vocab_size <= MAX_VOCAB_SIZE:
        raise InputError(f"vocab_size: got {vocab_size}, expected 1 to {MAX_VOCAB_SIZE}")
    ids = check_token_ids(token_ids)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise InputError(f"token_ids: got {ids.min()} to {ids.max()}, expected 0 to {vocab_size - 1}")
    values = _as_array("seeds", seeds, "an integer or integers [N]")
    checked = _integers("seeds", values, np.uint64, ids.shape if values.ndim else ())
    return ids.astype(np.uint32), _in_place(np.broadcast_to(checked, ids.shape), np.uint64)


def _row_index(rows: Any, logits_rows: int) -> NDArray[np.int64]:
    index = _integers("rows", rows, np.int64, None)
    if index.size and (index.min() < 0 or index.max() >= logits_rows):
        raise InputError(f"rows: got {index.min()} to {index.max()}, expected 0 to {logits_rows - 1}")
    if len(np.unique(index)) < len(index):
        raise InputError("rows: got a row twice, expected each at most once")
    return index


def _scatter(values: NDArray[Any], index: NDArray[np.int64], rows: int, default: int) -> NDArray[Any]:
    scattered = np.full((rows, *values.shape[1:]), default, dtype=values.dtype)
    scattered[index] = values
    return scattered


def _as_array(name: str, values: Any, expected: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:
        raise ShapeError(name, got="rows of different lengths", expected=expected) from None
    except (TypeError, RuntimeError):  # tensors that NumPy cannot read
        raise ShapeError(name, got="values that NumPy cannot read", expected=expected) from None


def _integers(name: str, values: Any, dtype: type, shape: tuple[int, ...] | None) -> NDArray[Any]:
    """Return integers of a shape; None: a vector of any length."""
    if is_tensor(values):
        if values.device.type != "cpu":
            raise ShapeError(name, got=f"device {values.device}", expected="the device of the logits, cpu")
        if values.is_floating_point():
            raise ShapeError(name, got=f"dtype {values.dtype}", expected="integers")
        values = values.numpy()
    array = _as_array(name, values, f"integers {list(shape) if shape is not None else '[M]'}")
    if array.dtype.kind not in "iu" and array.size:
        raise ShapeError(name, got=f"dtype {array.dtype}", expected="integers")
    if array.ndim != 1 if shape is None else array.shape != shape:
        expected = "[M]" if shape is None else f"{list(shape)}"
        raise ShapeError(name, got=f"shape {list(array.shape)}", expected=expected)
    return _cast(name, array, dtype)


def _cast(name: str, array: NDArray[Any], dtype: type) -> NDArray[Any]:
    if array.size and not np.can_cast(array.dtype, dtype):
        limits = np.iinfo(dtype)
        if array.max() > limits.max or array.min() < limits.min:
            raise InputError(
                f"{name}: got {array.max()} and {array.min()}, expected {np.dtype(dtype)} values"
            )
    return _in_place(array, dtype)


def _in_place(array: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return the array as native code reads it: without gaps, each number at a multiple of its size."""
    packed: NDArray[Any] = np.ascontiguousarray(array, dtype=dtype)
    return packed if packed.flags.aligned else packed.copy()  # a field of a record, or a cut of a buffer


def _temperatures(temperature: ArrayLike, rows: int) -> NDArray[np.float32]:
    try:
        values = np.asarray(temperature)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: tensors NumPy cannot read
        values = np.empty((), object)
    if values.dtype.kind not in "fiu":
        raise InputError(f"temperature: got {shown(temperature)}, expected a number or [B]")
    with np.errstate(over="ignore"):  # rows that are marked refuse infinity later
        values = values.astype(np.float32)
    if values.shape not in ((), (rows,)):
        raise ShapeError("temperature", got=f"shape {list(values.shape)}", expected=f"a number or [{rows}]")
    return _in_place(values, np.float32) if values.shape else np.full(rows, values)


def _check_rows(
    contexts: NDArray[np.int64], slots: NDArray[np.int32], kappas: NDArray[np.float32], keys: int
) -> None:
    if slots.min() < -1 or slots.max() >= keys:
        bad = int(np.flatnonzero((slots < -1) | (slots >= keys))[0])
        raise InputError(f"slots: row {bad} holds {slots[bad]}, expected -1 or a slot from 0 to {keys - 1}")
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
