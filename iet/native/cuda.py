"""The ops on CUDA tensors: buffers on the device, and the description of tensors for a kernel.

All inputs of a call are read on the device of the logits. A call copies nothing, allocates nothing and does
not wait, so it can be part of a captured graph. Three buffers are made before and cached: for each key table
and device the keys (derived ones; secrets never leave the registry) and the bits of the unmarked ids, and for
each stream the records of rows, which the first kernel of `embed_` writes for the second. A kernel cannot
raise; it writes an error into host memory, which `Refusals` reads later.

`iet.kernels` is the only caller of the ops; iet/native/host.py checks the logits for it. Engines keep
`Refusals` of their own; those whose contexts lie on the device read them with iet/native/rows.py.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.native import reference
from iet.native.host import Logits, is_tensor
from iet.native.load import load_cuda
from iet.native.marking import KernelParams

if TYPE_CHECKING:
    import torch

_REFUSED = (  # in the order of `Refusal` in csrc/ops.h
    "contexts: row {row} holds a negative id: a placeholder, not a token; expected the ids that were sampled",
    "slots: row {row} holds no slot of the registry; expected -1 or a slot from 0 to K-1",
    "rows: entry {row} is no row of the logits; expected 0 to B-1",
    "temperature: row {row} gives a κ that is negative or not finite; expected finite values of at least 0",
    "counts: row {row} holds a negative number; expected how often its context stood before",
)


class DeviceTable:
    """A marking on one device, with the native object that points to it."""

    def __init__(self, module: Any, marking: KernelParams, device: torch.device) -> None:
        import torch

        bits = np.zeros(-(-marking.vocab_size // module.chunk) * module.chunk, dtype=np.uint8)
        bits[list(marking.unmarked_ids)] = 1
        words = _words(bits)
        has_mark = bits.reshape(-1, module.chunk).max(axis=1)
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "unmarked_bits": words[: -(-marking.vocab_size // 32)],
            "unmarked_chunks": _words(has_mark),
            **_keys_of(marking),
        }
        self._tensors = {name: torch.from_numpy(array.copy()).to(device) for name, array in arrays.items()}
        self._streams = {stream(device)}
        addresses = {name: tensor.data_ptr() for name, tensor in self._tensors.items()}
        if not marking.unmarked_ids:
            addresses["unmarked_bits"] = addresses["unmarked_chunks"] = 0
        profile = marking.vocab_size, marking.n_gram, marking.code
        self.marking = module.KernelParams(*profile, *addresses.values(), len(marking))

    def refresh_keys(self, marking: KernelParams) -> None:
        """Queue copies of the keys of a marking on the current stream."""
        import torch

        for name, array in _keys_of(marking).items():
            tensor = self._tensors[name]
            staged = torch.from_numpy(array.copy())  # the next keys may come before the device has read these
            tensor.copy_(staged.pin_memory() if tensor.device.type == "cuda" else staged, non_blocking=True)

    def used(self, device: torch.device) -> None:
        """Tell the allocator that the current stream reads the tensors: freed, they outlive its work.

        Once a stream: the allocator remembers it for as long as the tensors live.
        """
        import torch

        if (current := stream(device)) not in self._streams:
            for tensor in self._tensors.values():
                tensor.record_stream(torch.cuda.current_stream(device))
            self._streams.add(current)


def _keys_of(marking: KernelParams) -> dict[str, np.ndarray[Any, Any]]:
    """Return what of a marking differs from key to key."""
    return {
        "subkeys": marking.subkey_words.view(np.int64),
        "steps": reference.phase_step(marking.k_p, marking.vocab_size).view(np.int32),
    }


_tables: weakref.WeakKeyDictionary[KernelParams, dict[Any, DeviceTable]] = weakref.WeakKeyDictionary()
_in_graphs: set[Any] = set()  # a captured graph keeps their addresses, so they stay for good
# device -> memory of the host that it writes into, one entry for each of _REFUSED; 0 or 1 + the row
_refused: dict[Any, NDArray[np.int32]] = {}
_scratch: dict[tuple[torch.device, int], torch.Tensor] = {}  # device and stream -> int64
launching = threading.Lock()  # two threads with one stream: what one left in scratch must not reach the other
RECORD = 2  # words of a row's record


def keep_for_graphs(buffer: object) -> None:
    """Keep what a graph that is being captured has the address of, for the life of the process."""
    _in_graphs.add(buffer)


def _words(bits: NDArray[Any]) -> NDArray[np.int32]:
    """Return bits as the kernels read them, 32 to a word."""
    padded = np.concatenate([bits.astype(np.uint8), np.zeros(-len(bits) % 32, dtype=np.uint8)])
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32).view(np.int32)


def refused(device: torch.device) -> int:
    """Return the address at which kernels of a device write what they refuse."""
    return int(_refused[device].ctypes.data)


def scratch(device: torch.device, words: int) -> torch.Tensor:
    """Return memory in which one kernel of a call leaves results for the next one, int64 [>= words].

    It is that of the current stream: work on one stream runs in order, so that it serves one call after the
    other. A graph may be replayed on any stream: each call that is captured has its own, for the life of the
    process.
    """
    import torch

    key, captured = (device, stream(device)), capturing(device)
    memory = None if captured else _scratch.get(key)
    if memory is None or memory.shape[0] < words:
        with torch.inference_mode(False):
            size = words if captured else max(2048, 1 << (words - 1).bit_length())
            memory = torch.empty(size, dtype=torch.int64, device=device)
        if captured:
            keep_for_graphs(memory)
        else:
            _scratch[key] = memory
    return memory


def capturing(device: torch.device) -> bool:
    """Tell whether the current stream of a device is being captured in a graph."""
    import torch

    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def table(module: Any, marking: KernelParams, device: torch.device) -> DeviceTable:
    """Return the marking on `device`, made on the first call, which must not be inside a graph capture."""
    import torch

    tables = _tables.setdefault(marking, {})
    stored, captured = tables.get(device), capturing(device)
    if stored is None or device not in _refused:
        if captured:
            raise BackendUnavailable(
                f"the keys are not on {device} yet, and copying them there cannot be captured in a graph:"
                " call iet.kernels.prepare(registry, device) before the capture"
            )
        # Ordinary tensors, also if the first call comes under inference mode: they are changed later on. And
        # `setdefault`, because two threads may be here at once, and the other's may be in use.
        with torch.inference_mode(False), device_guard(device):
            if device not in _refused:
                module.load_kernels()
                memory = (ctypes.c_int32 * module.refusals).from_address(
                    module.host_memory(4 * module.refusals)
                )
                _refused.setdefault(device, np.ctypeslib.as_array(memory))
            made = DeviceTable(module, marking, device)
        if device.type == "cuda":  # whatever stream uses them first
            torch.cuda.current_stream(device).synchronize()
        stored = tables.setdefault(device, made)
    if captured:
        keep_for_graphs(stored)
    else:
        stored.used(device)
    return stored


def refresh_keys(marking: KernelParams, device: torch.device) -> None:
    """Take over what was written into the arrays of keys of a marking, in the order of the current stream.

    Nothing is waited for, and a captured graph reads the new keys when it is replayed.
    """
    table = _tables.get(marking, {}).get(device)
    if table is not None:
        table.refresh_keys(marking)


def checked_device(device: torch.device | str) -> torch.device:
    """Return a CUDA device with its number.

    Raises:
        BackendUnavailable: no CUDA module, or `device` is not a CUDA device.
    """
    import torch

    target = torch.device(device)
    if target.type != "cuda":
        raise BackendUnavailable(f"device: got {target}, expected a CUDA device")
    module = load_cuda()
    if module.device_count() == 0:
        raise BackendUnavailable(
            f"device: got {target}, but there is no CUDA device: {module.device_error()}"
        )
    return target if target.index is not None else torch.device("cuda", torch.cuda.current_device())


def stream(device: torch.device) -> int:
    """Return the current stream of a device, on which a native call queues its work."""
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def device_guard(device: torch.device) -> AbstractContextManager[object]:
    """Return a guard that makes a device the current one.

    It is torch's own, which goes back to the device before only if that has a context already: to make one
    there would take half a gigabyte of a device that this process does not use.
    """
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class DeviceRows(NamedTuple):
    """The checked arguments of rows, all on the device of the logits."""

    rows: int
    contexts: Any
    slots: Any
    times: Any
    kappa: np.float32
    temperatures: Any
    index: Any

    @classmethod
    def of(
        cls,
        marking: KernelParams,
        logits: Logits,
        contexts: Any,
        slots: Any,
        temperature: Any,
        rows: Any,
        counts: Any,
    ) -> DeviceRows:
        """Check the arguments of `embed_`."""
        device = logits.device
        index = None if rows is None else on_device("rows", rows, device, (None,))
        count = logits.rows if index is None else index.shape[0]
        contexts = on_device("contexts", contexts, device, (count, marking.n_gram - 1))
        slots = on_device("slots", slots, device, (count,))
        times = None if counts is None else on_device("counts", counts, device, (count,))
        kappa = np.float32(marking.kappa)
        if not is_tensor(temperature):
            return cls(count, contexts, slots, times, _scaled(kappa, temperature), None, index)
        if str(temperature.dtype) != "torch.float32" or temperature.device != device:
            got = f"{temperature.dtype} on {temperature.device}"
            raise ShapeError("temperature", got=got, expected=f"a number, or float32 on {device}")
        if tuple(temperature.shape) not in ((), (count,)):
            got = f"shape {list(temperature.shape)}"
            raise ShapeError("temperature", got=got, expected=f"a number or [{count}]")
        return cls(count, contexts, slots, times, kappa, temperature, index)

    def queue(self, native: Any, logits: Logits, marking: KernelParams, records: int) -> None:
        """Queue the kernel that writes a record of each row."""
        temperatures = self.temperatures
        arguments = (
            self.rows,
            NOWHERE,
            self.rows,
            address(self.contexts),
            self.contexts.stride(1),
            marking.n_gram - 1,
            NOWHERE,
            NOWHERE,
            NOWHERE,
            address(self.slots),
            0 if temperatures is None else temperatures.data_ptr(),
            0 if temperatures is None or temperatures.dim() == 0 else temperatures.stride(0),
            float(self.kappa),
            *(0, 0, NOWHERE, 0, 0),  # contexts are not counted, and no token is free
        )
        targets, counts = address(self.index), address(self.times)
        native.rows(
            stream(logits.device), arguments, targets, logits.rows, counts, refused(logits.device), records
        )


def embed_(
    module: Any,
    marking: KernelParams,
    logits: Logits,
    contexts: Any,
    slots: Any,
    temperature: Any,
    rows: Any,
    source: Logits | None = None,
    counts: Any = None,
) -> None:
    """Queue `embed_` on the current stream of the device of the logits: two kernels.

    Args:
        module: the native one.
        marking: the keys and their parameters.
        logits: their layout on the device.
        contexts, slots, temperature, rows, counts: as in `iet.embed_`.
        source: the unmarked logits, in the same layout as `logits`, which are then written in full; `rows`
            must be None. None: `logits` are changed in place.
    """
    of_rows = DeviceRows.of(marking, logits, contexts, slots, temperature, rows, counts)
    if of_rows.rows == 0:
        return
    device = logits.device
    native = table(module, marking, device).marking
    with device_guard(device), launching:
        records = scratch(device, RECORD * of_rows.rows).data_ptr()
        of_rows.queue(native, logits, marking, records)
        from_address = (logits if source is None else source).layout[0]
        native.embed(
            stream(device), *logits.layout, from_address, of_rows.rows, address(of_rows.index), records
        )


def _scaled(kappa: np.float32, temperature: ArrayLike) -> np.float32:
    try:
        scaled = np.float32(kappa * np.float32(np.asarray(temperature, dtype=np.float32).item()))
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"temperature: got {type(temperature).__name__}, expected a number, or float32 on the device of"
            " the logits"
        ) from None
    if not np.isfinite(scaled) or scaled < 0:
        raise InputError(f"temperature: gives κ = {scaled}, expected a finite value of at least 0")
    return scaled


def raise_if_refused(device: torch.device) -> None:
    """Wait for the current stream of `device`, and raise what embed_ refused there since the last call."""
    import torch

    if device in _refused:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        _raise(_refused[device])


def _raise(flag: NDArray[np.int32]) -> None:
    rows = flag.tolist()
    if not any(rows):
        return
    messages = [text.format(row=row - 1) for text, row in zip(_REFUSED, rows, strict=True) if row]
    flag[np.flatnonzero(rows)] = 0  # those alone: a kernel may be writing another
    raise InputError(
        "; ".join(messages)
        + " (found on the device, in this call or an earlier one: such rows were left unmarked)"
    )


class Refusals:
    """Raise the errors of `embed_` on a device one call later, without waiting for the device.

    The device writes into memory of the host: `note` says which device was used, `check` reads what its work
    has written so far. Both do nothing on the CPU, where embed_ raises; inside a graph capture, `check` is
    silent. There is one flag for a device: what the last step of a run refused is raised by
    `raise_if_refused`, or in the next run on that device.
    """

    def __init__(self) -> None:
        self._device: Any = None

    def note(self, device: torch.device) -> None:
        """Remember the device on which embed_ was called."""
        self._device = device

    def check(self) -> None:
        """Raise what was refused on that device."""
        flag = _refused.get(self._device)
        if flag is not None and not capturing(self._device):
            _raise(flag)


Address = tuple[int, int, bool]  # of integers, as the native module takes them: data, stride, whether int64
NOWHERE: Address = (0, 0, False)


def address(values: torch.Tensor | None) -> Address:
    """Return where integers lie: the address, the stride of the first dimension in elements, the width."""
    if values is None:
        return NOWHERE
    return values.data_ptr(), values.stride(0) if values.dim() else 0, values.element_size() == 8


def on_device(name: str, values: Any, device: torch.device, shape: tuple[int | None, ...]) -> torch.Tensor:
    """Return `values`, integers of that shape (None: any size) on `device`; else raise."""
    import torch

    if not is_tensor(values):
        got, expected = type(values).__name__, f"a tensor on {device}: nothing is copied there silently"
    elif values.device != device:
        got, expected = f"device {values.device}", f"the device of the logits, {device}"
    elif values.dtype not in (torch.int32, torch.int64):
        got, expected = f"dtype {values.dtype}", "int32 or int64"
    elif len(values.shape) != len(shape) or any(
        size is not None and size != actual for size, actual in zip(shape, values.shape, strict=True)
    ):
        got = f"shape {list(values.shape)}"
        expected = str(["any" if size is None else size for size in shape])
    else:
        tensor: torch.Tensor = values
        return tensor
    raise ShapeError(name, got=got, expected=expected)
