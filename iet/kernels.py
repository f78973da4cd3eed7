"""The ops, on the fastest backend at hand: the only importer of the native modules.

Three backends: `cpu` (the compiled module), `cuda` (a module of its own, loaded on first use) and
`reference` (NumPy), which serves where the compiled module is missing. All agree to the bit.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pathlib
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet import reference
from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.registry import KeyTable, Registry
from iet.scheme import MAX_VOCAB_SIZE, SCHEME_VERSION

if TYPE_CHECKING:
    import torch

_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}


@dataclasses.dataclass(frozen=True)
class Backends:
    """What runs here, and why.

    Attributes:
        host: "cpu" or "reference": what numpy arrays and CPU tensors use.
        isa: instruction set in use ("baseline", "avx2", "avx512"), or None on `reference`.
        isas: those that this build and machine can run.
        cpu: a sentence about the compiled module.
        cuda: a sentence about the CUDA module.
        cuda_devices: how many CUDA devices the driver shows.
    """

    host: str
    isa: str | None
    isas: tuple[str, ...]
    cpu: str
    cuda: str
    cuda_devices: int


def _load(name: str) -> tuple[Any, str]:
    """Return a native module, or None, and a sentence that says why."""
    if os.environ.get("IET_BACKEND") == "reference":
        return None, "IET_BACKEND=reference asks for the reference backend"
    try:
        module = importlib.import_module(f"iet.{name}")
    except ImportError as error:
        return None, f"the compiled module iet.{name} cannot be loaded ({error})"
    if module.scheme_version != SCHEME_VERSION:
        return (
            None,
            f"iet.{name} was built for scheme {module.scheme_version}, expected {SCHEME_VERSION}: rebuild it",
        )
    return module, f"the compiled module iet.{name} is loaded"


def _load_cpu() -> tuple[Any, str]:
    backend = os.environ.get("IET_BACKEND", "")
    if backend not in ("", "cpu", "reference"):
        raise InputError(f'IET_BACKEND: got {backend!r}, expected "cpu" or "reference"')
    module, why = _load("_cpu")
    if module is None:
        if backend == "cpu":
            raise BackendUnavailable(f"IET_BACKEND=cpu, but {why}")
        if backend == "":
            if (pathlib.Path(__file__).parent.parent / "csrc").is_dir():
                why += "; this is the source tree: pip install -e ."
            warnings.warn(f"iet runs on its slow reference backend: {why}", RuntimeWarning, stacklevel=2)
        return None, why
    isa = os.environ.get("IET_CPU")
    if isa is not None and not module.select_isa(isa):
        raise BackendUnavailable(
            f"IET_CPU: got {isa!r}, expected one of {module.isas().split()} on this machine"
        )
    return module, why


_cpu, _why_cpu = _load_cpu()


def backends() -> Backends:
    """Return what is in use, and why. Loads the CUDA module, but never initialises a device context."""
    cuda, why_cuda = _load("_cuda")
    devices = cuda.device_count() if cuda else 0
    if cuda:
        why_cuda += f"; {devices} device{'' if devices == 1 else 's'}; logits on CUDA are not marked yet"
    if _cpu is None:
        return Backends("reference", None, (), _why_cpu, why_cuda, devices)
    return Backends("cpu", _cpu.isa(), tuple(_cpu.isas().split()), _why_cpu, why_cuda, devices)


# ---------------------------------------------------------------- embed_


def embed_(
    logits: NDArray[Any] | torch.Tensor,
    contexts: ArrayLike | torch.Tensor,
    slots: ArrayLike | torch.Tensor,
    registry: Registry | KeyTable,
    *,
    profile: str | None = None,
    temperature: ArrayLike = 1.0,
) -> None:
    """Mark a batch of logits in place: L̃_j = P⁻¹(k_π, F(k_p, κ, P(k_π, L_j))).

    The equation of § Keyed Implicit Embedding, computed without permuting anything:
    `logits[i, v] += κ·φ(P(k_π, v))` for v in [0, V), where k_π is the hash of row i's context under the key
    of its slot. Columns from V on (padded vocabularies), the profile's special and padding ids, rows with
    slot -1 and rows whose context holds such an id stay as they are. -inf stays -inf and NaN stays NaN.

    Args:
        logits: float32, float16 or bfloat16 [B, >= V], a writable numpy array or a torch tensor on the CPU;
            any strides that do not overlap. Changed in place, one rounding per logit.
        contexts: integer ids [B, n-1]: those before the position that is sampled next, oldest first.
        slots: integers [B]: `registry.slot(agent)`, or -1 for an unmarked row.
        registry: the registry, or a `KeyTable` of it.
        profile: id of the profile, where the registry has several.
        temperature: scalar or [B]; κ is multiplied by it. 1 where `logits` are the final ones; where the
            sampler will still divide by a temperature, that temperature.

    Raises:
        ShapeError: wrong shape, dtype, stride or device of an argument.
        InputError: a slot that names no agent, or a negative id in the context of a marked row
            (engines write -1 where the real id is not known yet; hashing it would lose the mark).
        BackendUnavailable: logits on a device for which no kernel is built. Nothing is copied.

    Deterministic, and the same to the bit on every backend. O(B·V).
    """
    keys = _keys(registry, "marking_keys", profile)
    scheme, vocab_size = keys.profile.scheme, keys.profile.vocab_size
    address, dtype, (rows, columns), strides, array = _describe_logits(logits)
    if columns < vocab_size:
        raise ShapeError(
            "logits", got=f"[{rows}, {columns}]", expected=f"[B, >= {vocab_size}], V of the profile"
        )
    context_ids = _integers("contexts", contexts, np.int64, (rows, scheme.n_gram - 1))
    slot_ids = _integers("slots", slots, np.int32, (rows,))
    kappas = np.float32(scheme.kappa) * _temperatures(temperature, rows)
    if rows == 0:
        return
    _check_rows(context_ids, slot_ids, kappas, keys)

    if _cpu is not None:
        _native(keys).embed(
            address,
            _DTYPES[dtype],
            rows,
            *strides,
            context_ids.ctypes.data,
            slot_ids.ctypes.data,
            kappas.ctypes.data,
        )
        return
    reference.embed_(
        array(),
        context_ids,
        slot_ids,
        kappas,
        subkeys=keys.subkeys,
        k_p=keys.k_p,
        vocab_size=vocab_size,
        family=scheme.family,
        unmarked_ids=keys.profile.unmarked_ids,
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
        if logits.device.type != "cpu":
            raise BackendUnavailable(
                f"logits are on {logits.device}: this build marks numpy arrays and tensors on the CPU;"
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
    return address, dtype, (rows, columns), (row_stride, element_stride), array


def _is_tensor(value: object) -> bool:
    # Without importing torch: whoever holds a tensor has imported it.
    return any(cls.__module__ == "torch" and cls.__name__ == "Tensor" for cls in type(value).__mro__)


def _integers(name: str, values: Any, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    if _is_tensor(values):
        if values.device.type != "cpu":
            raise ShapeError(name, got=f"device {values.device}", expected="the device of the logits, cpu")
        values = values.numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ShapeError(name, got=f"dtype {array.dtype}", expected="integers")
    if array.shape != shape:
        raise ShapeError(name, got=f"shape {list(array.shape)}", expected=f"{list(shape)}")
    return _cast(name, array, dtype)


def _cast(name: str, array: NDArray[Any], dtype: type) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    if array.dtype != dtype and array.size and (array.max() > limits.max or array.min() < limits.min):
        raise InputError(f"{name}: got {array.max()} and {array.min()}, expected {np.dtype(dtype)} values")
    return np.ascontiguousarray(array, dtype=dtype)


def _temperatures(temperature: ArrayLike, rows: int) -> NDArray[np.float32]:
    try:
        values = np.asarray(temperature, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"temperature: got {temperature!r}, expected a number or [B]") from None
    if values.shape not in ((), (rows,)):
        raise ShapeError("temperature", got=f"shape {list(values.shape)}", expected=f"a number or [{rows}]")
    return np.ascontiguousarray(np.broadcast_to(values, (rows,)))


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
    if not np.isfinite(kappas).all() or kappas.min() < 0:
        raise InputError(
            f"temperature: gives κ = {kappas.min()}..{kappas.max()}, expected finite values of at least 0"
        )


# ---------------------------------------------------------------- score_tokens


def score_tokens(
    token_ids: ArrayLike, registry: Registry | KeyTable, *, profile: str | None = None
) -> NDArray[np.float32]:
    """Score every position of a text under every key: x_j(a) = k_p(a)[P(k_π^(j), y_j)] (§ Agent Attribution).

    Args:
        token_ids: integer ids [T].
        registry: the registry (all epochs of all agents), or a `KeyTable` of it.
        profile: id of the profile, where the registry has several.

    Returns:
        float32 [T, K] in [-1, 1], 0 where a position is not scored (see `positions`). Columns follow
        `registry.scoring_keys(profile)`: several for an agent whose key was rotated.

    Raises:
        ShapeError: `token_ids` is not one-dimensional or not integer.

    Deterministic, and the same to the bit on every backend. O(T·K).
    """
    keys = _keys(registry, "scoring_keys", profile)
    ids = _token_ids(token_ids)
    if _cpu is None:
        return reference.score_tokens(
            ids,
            keys.profile.scheme.n_gram,
            subkeys=keys.subkeys,
            k_p=keys.k_p,
            vocab_size=keys.profile.vocab_size,
            family=keys.profile.scheme.family,
            unmarked_ids=keys.profile.unmarked_ids,
        )
    scores = np.empty((len(ids), len(keys)), dtype=np.float32)
    _native(keys).score(ids.ctypes.data, len(ids), scores.ctypes.data)
    return scores


def score_spans(
    token_ids: ArrayLike,
    boundaries: ArrayLike,
    registry: Registry | KeyTable,
    *,
    counted: ArrayLike | None = None,
    profile: str | None = None,
) -> NDArray[np.float64]:
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

    Returns:
        float64 [S, K], columns as those of `score_tokens`.

    Raises:
        ShapeError: an argument has a wrong shape or type.
        InputError: `boundaries` are not ascending within the text.

    Deterministic, and the same to the bit on every backend. O(T·K) time, S·K·8 bytes.
    """
    keys = _keys(registry, "scoring_keys", profile)
    ids = _token_ids(token_ids)
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
    return reference.score_spans(
        ids,
        cuts,
        mask,
        keys.profile.scheme.n_gram,
        subkeys=keys.subkeys,
        k_p=keys.k_p,
        vocab_size=keys.profile.vocab_size,
        family=keys.profile.scheme.family,
        unmarked_ids=keys.profile.unmarked_ids,
    )


def positions(
    token_ids: ArrayLike, registry: Registry | KeyTable, *, profile: str | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell which positions are scored, and which of those repeat an earlier (context, token) pair.

    A repeated pair has the same score under every key as its first occurrence: it is no new evidence.

    Args:
        token_ids: integer ids [T].
        registry: the registry, or a `KeyTable` of it.
        profile: id of the profile, where the registry has several.

    Returns:
        scored bool [T], repeated bool [T] (false where not scored). Expected O(T·n).
    """
    pairs = pair_numbers(token_ids, registry, profile=profile)
    return pairs >= 0, repeats(pairs)


def repeats(pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which of the `pair_numbers` [T] stood earlier in the text; false where not scored. O(T)."""
    repeated = pairs >= 0
    repeated[:1] = False
    repeated[1:] &= pairs[1:] <= np.maximum.accumulate(pairs[:-1])  # numbers follow first occurrences
    return repeated


def pair_numbers(
    token_ids: ArrayLike, registry: Registry | KeyTable, *, profile: str | None = None
) -> NDArray[np.int64]:
    """Number the (context, token) pairs of a text.

    Args:
        token_ids: integer ids [T].
        registry: the registry, or a `KeyTable` of it.
        profile: id of the profile, where the registry has several.

    Returns:
        int64 [T]: 0, 1, 2, ... in the order of first occurrence, equal for equal pairs, -1 where not scored.

    Expected O(T·n).
    """
    from iet.decoding.pairs import number_pairs  # here, because it imports numba

    keys = _keys(registry, "scoring_keys", profile)
    ids, n_gram = _token_ids(token_ids), keys.profile.scheme.n_gram
    scored = reference.is_scored(ids, n_gram, keys.profile.vocab_size, keys.profile.unmarked_ids)
    return number_pairs(ids, scored, n_gram)


def permute(token_ids: ArrayLike, seeds: ArrayLike, vocab_size: int) -> NDArray[np.uint32]:
    """Return P(k_π, v) for pairs of ids and seeds, on the host backend: what known answers are checked with.

    Args:
        token_ids: ids [N] in [0, V).
        seeds: uint64 [N].
        vocab_size: V, 1 to 2^24.

    Raises:
        InputError: an id or V is out of range.
    """
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
    module, why = _load("_cuda")
    if module is None or module.device_count() == 0:
        raise BackendUnavailable(f"CUDA: {why}, and a device is needed")
    ids, seeds = _permutation_input(token_ids, seeds, vocab_size)
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
    ids = _token_ids(token_ids)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise InputError(f"token_ids: got {ids.min()} to {ids.max()}, expected 0 to {vocab_size - 1}")
    wide = np.ascontiguousarray(np.broadcast_to(np.asarray(seeds, dtype=np.uint64), ids.shape))
    return ids.astype(np.uint32), wide


def _keys(registry: object, which: Literal["marking_keys", "scoring_keys"], profile: str | None) -> KeyTable:
    if isinstance(registry, Registry):
        return registry.marking_keys(profile) if which == "marking_keys" else registry.scoring_keys(profile)
    if not isinstance(registry, KeyTable):
        raise InputError(f"registry: got {type(registry).__name__}, expected iet.Registry")
    return registry


def _token_ids(values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
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
        cached = _natives[keys] = (marking, [unmarked, subkeys, k_p])
    return cached[0]
