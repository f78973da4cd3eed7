"""The rows of an engine's steps, whose contexts lie in a table of tokens: on the CPU and on CUDA.

For an engine with its requests' tokens in one tensor (vLLM's V2 runner, transformers): `SequenceRows.read`
finds contexts, free tokens and how often each context occurred. Then the rows are marked, or their tokens are
chosen. On CUDA these are two or three kernels: nothing is copied or waited for, and nothing is allocated
after the largest batch.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iet.errors import BackendUnavailable, InputError, ShapeError
from iet.native import choices, cuda, host
from iet.native.filters import FILTER
from iet.native.load import cpu, load_cuda
from iet.native.marking import KernelParams

if TYPE_CHECKING:
    import torch

LEFT_ALONE = -1
"""Third word of the record of a row that is not marked."""

_SMALLEST = 1 << 10  # entries of a table


class FreeRows(NamedTuple):
    """Which rows have a free token: `iet.generation.free.FreeTokens`.

    Attributes:
        keys: int64 [sequences], of the requests.
        starts: int32 or int64 [sequences], any strides: positions at which the answers begin.
        first: number of tokens at the start of an answer that are free.
        rate: 2^32 times the probability that a later one is free.
    """

    keys: torch.Tensor
    starts: torch.Tensor
    first: int
    rate: int


class ContextTables:
    """How often each context occurred in each sequence: hash tables that steps extend by what was committed.

    A table has 11 to 22 bytes for each token of its sequence. A sequence that outgrows its table gets a
    larger one, and is counted again, as after tokens were taken back. 40 bits and the place distinguish
    contexts: the chance of a wrong count, which spoils one token's mark, is below 1e-6 in 128k tokens.

    Args:
        sequences: their maximum number.
        device: of the tables, the CPU or CUDA.
    """

    def __init__(self, sequences: int, device: torch.device) -> None:
        import torch

        self._tables: dict[int, torch.Tensor] = {}
        self._start = secrets.randbits(63)  # of hashes: a client cannot choose contexts with equal ones
        self._limits = np.zeros(sequences, dtype=np.int64)  # lengths of sequences
        self._pointers = np.zeros(sequences, dtype=np.int64)
        self._changed = False
        with torch.inference_mode(False):  # changed later, in any mode
            self._sent = torch.zeros(sequences, dtype=torch.int64, device=device)

    @property
    def address(self) -> int:
        """Return the address of the array that has the addresses of the tables."""
        return self._sent.data_ptr()

    def forget(self, sequence: int) -> None:
        """Free the table of a sequence that has ended, or was replaced."""
        self._tables.pop(sequence, None)
        self._limits[sequence] = self._pointers[sequence] = 0
        self._changed = True

    def fit(self, sequences: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> None:
        """Make tables for the marked sequences [B] of a step, of these lengths [B] or upper bounds of them.

        Call it before the step's `SequenceRows.read`, which uses no other tables.
        """
        import torch

        is_longer = lengths > self._limits[sequences]
        if not is_longer.any() and not self._changed:
            return
        self._changed, too_long = False, np.flatnonzero(is_longer)
        with torch.inference_mode(False):
            for sequence, length in zip(
                sequences[too_long].tolist(), lengths[too_long].tolist(), strict=True
            ):
                entries = max(_SMALLEST, 1 << (length * 4 // 3).bit_length())
                table = torch.zeros(3 + entries, dtype=torch.int64, device=self._sent.device)
                table[1], table[2] = entries - 1, self._start
                self._tables[sequence] = table
                self._pointers[sequence] = table.data_ptr()
                self._limits[sequence] = entries // 4 * 3
            staged = torch.from_numpy(self._pointers.copy())
            if self._sent.device.type == "cuda":
                staged = staged.pin_memory()
            self._sent.copy_(staged, non_blocking=True)


class SequenceRows:
    """The rows of an engine's steps, in memory of their own: read them, then mark logits with them.

        rows = SequenceRows(marking, device)
        rows.read(tokens, slots, requests=requests, lengths=lengths, temperatures=temperatures)
        rows.embed_(logits)    # or rows.choose_(logits)

    On CUDA both calls queue kernels on the current stream. One object serves one engine: its next `read`
    overwrites what the last one wrote, so that all calls must be on one stream, or be ordered otherwise.

    Args:
        marking: the keys and their parameters.
        device: the CPU, or a CUDA device with its number; `iet.kernels.prepare` has put the keys there.
        rows: expected maximum number of rows of a step on CUDA; a larger step allocates more memory.

    Attributes:
        records: on CUDA, int32 [>= rows, 4], of the last `read`: the two halves of the seed, the frequency
            of φ (or `LEFT_ALONE`) and the bits of κ·temperature.
    """

    def __init__(self, marking: KernelParams, device: torch.device, rows: int = 1024) -> None:
        import torch

        if device.type not in ("cpu", "cuda"):
            raise BackendUnavailable(f"device: got {device}, expected the CPU or CUDA")
        self._marking, self._device, self._rows = marking, device, 0
        self._requests: torch.Tensor | None = None
        self._outgrown: list[torch.Tensor] = []  # a captured graph may hold their addresses
        self._scratch = self.records = torch.empty(0, 4, dtype=torch.int32)
        self._on_host: dict[str, Any] = {}
        self._by_kernels = self._is_captured = False
        if device.type == "cuda":
            self.use_kernels(rows)

    def use_kernels(self, rows: int = 1024) -> None:
        """Allocate the memory of kernels, and load them: now, not in the first step."""
        self._table = cuda.table(load_cuda(), self._marking, self._device)
        self.records, self._by_kernels = self._memory(rows, 4), True

    def _memory(self, rows: int, words: int) -> torch.Tensor:
        import torch

        with torch.inference_mode(False):  # written later, in whatever mode
            size = 1 << (rows - 1).bit_length()
            return torch.zeros(size, words, dtype=torch.int32, device=self._device)

    def _fitted(self, memory: torch.Tensor, rows: int, words: int) -> torch.Tensor:
        if rows > memory.shape[0]:
            self._outgrown.append(memory)
            memory = self._memory(rows, words)
        if self._is_captured:
            cuda.keep_for_graphs(memory)
        return memory

    def read(
        self,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        *,
        requests: torch.Tensor | None = None,
        lengths: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
        drafts: torch.Tensor | None = None,
        tables: ContextTables | None = None,
        free: FreeRows | None = None,
    ) -> None:
        """Find the context of each row. Row i comes `places[i]` drafts after the tokens of its request:

            sequence = tokens[requests[i], :lengths[requests[i]]], then drafts[i - places[i] + 1 : i + 1]
            context = the last n-1 ids of it

        A row is not marked if it has no request (below 0) or no key, if its token is free, if the sequence is
        shorter than the context, or if an id of the context is unmarked or a draft below 0. On CUDA a row is
        refused if a committed id is below 0, or a request, slot or κ is out of range
        (`iet.native.cuda.Refusals`); on the CPU `embed_` and `choose_` raise.

        All tensors are on the device, or in host memory that it can read.

        Args:
            tokens: int32 or int64 [requests, columns], any strides.
            slots: int32 or int64 [requests], -1 for one that is not marked.
            requests: int32 or int64 [rows]; None: row i belongs to request i.
            lengths: int32 or int64 [requests], committed tokens; None: all columns are.
            temperatures: float32 [requests]; κ is multiplied by them. None: 1.
            places: int32 or int64 [rows], or None: 0 everywhere. Rows of a request are adjacent and in order.
            drafts: int32 or int64 [rows], the inputs of the rows; needed with `places`.
            tables: seed rows with the number of earlier occurrences of the context in the sequence, prompt
                and drafts included: only for a marking that is `counted`. They fit the sequences.
            free: which rows are free.
        """
        rows = tokens.shape[0] if requests is None else requests.shape[0]
        arguments = (
            rows,
            cuda.address(requests),
            tokens.shape[0],
            cuda.address(tokens),
            tokens.stride(1),
            tokens.shape[1],
            cuda.address(lengths),
            cuda.address(places),
            cuda.address(drafts),
            cuda.address(slots),
            0 if temperatures is None else temperatures.data_ptr(),
            0 if temperatures is None else temperatures.stride(0),
            float(self._marking.kappa) if self._by_kernels else 1.0,
            0 if tables is None else tables.address,
            0 if free is None else free.keys.data_ptr(),
            cuda.NOWHERE if free is None else cuda.address(free.starts),
            0 if free is None else free.first,
            0 if free is None else free.rate,
        )
        self._rows, self._requests = rows, requests
        if self._by_kernels:
            self._queue(arguments)
        else:
            self._read_on_host(arguments, counted=tables is not None)

    def _queue(self, arguments: tuple[Any, ...]) -> None:
        self._is_captured = cuda.capturing(self._device)
        if self._is_captured:
            cuda.keep_for_graphs(self._table)
        self.records = self._fitted(self.records, self._rows, 4)
        with cuda.device_guard(self._device):
            queue, refused = cuda.stream(self._device), cuda.refused(self._device)
            records, nowhere = self.records.data_ptr(), cuda.NOWHERE
            self._table.marking.rows(queue, arguments, nowhere, self._rows, nowhere, refused, records)

    def _read_on_host(self, arguments: tuple[Any, ...], counted: bool) -> None:
        if cpu is None:
            raise BackendUnavailable("rows of sequences: the compiled module is missing, which reads them")
        rows = self._rows
        contexts = np.empty((rows, self._marking.n_gram - 1), np.int64)
        slots, temperatures = np.empty(rows, np.int32), np.empty(rows, np.float32)
        counts = np.empty(rows, np.int32) if counted else None
        addresses = [
            0 if array is None else array.ctypes.data for array in (contexts, slots, temperatures, counts)
        ]
        if not host.native(self._marking).read_rows(arguments, *addresses):
            raise InputError(f"requests: got one outside the table, expected numbers below {arguments[2]}")
        self._on_host = {"contexts": contexts, "slots": slots, "temperature": temperatures, "counts": counts}

    def embed_(self, logits: torch.Tensor) -> None:
        """Mark the rows that were read: `iet.embed_`, of the same bits.

        Args:
            logits: float32, float16 or bfloat16 [rows, >= V] on the device; changed in place.

        Raises:
            ShapeError: a wrong shape, dtype or stride.
            InputError: on the CPU, a row that is refused.
        """
        described = self._described(logits)
        if not self._by_kernels:
            host.embed_(self._marking, described, rows=None, num_threads=None, **self._on_host)
            return
        layout = described.layout
        with cuda.device_guard(self._device):
            queue, records = cuda.stream(self._device), self.records.data_ptr()
            self._table.marking.embed(queue, *layout, layout[0], self._rows, cuda.NOWHERE, records)

    def choose_(
        self, logits: torch.Tensor, filters: torch.Tensor | None = None, source: torch.Tensor | None = None
    ) -> None:
        """Choose the tokens of the rows that were read, and force them: `iet.kernels.choose`.

        Args:
            logits: as in `embed_`.
            filters: int32 [requests, 4] on the device: the bits of `iet.native.filters.FILTER`. None: all
                tokens are kept.
            source: logits of the same layout; then `logits` are written in full. None: they are changed in
                place.

        Raises:
            what `embed_` raises.
        """
        described = self._described(logits)
        if not self._by_kernels:
            if source is not None:
                logits.copy_(source)
            of_rows = self._filters_of_rows(filters)
            host.choose(
                self._marking, described, filters=of_rows, force=True, num_threads=None, **self._on_host
            )
            return
        words = 2 * choices.scratch_words(load_cuda(), described)
        self._scratch = self._fitted(self._scratch, -(-words // 4), 4)
        with cuda.device_guard(self._device):
            self._table.marking.choose(
                cuda.stream(self._device),
                *described.layout,
                (described if source is None else self._described(source)).layout[0],
                self._rows,
                cuda.NOWHERE,
                self.records.data_ptr(),
                cuda.address(self._requests),
                0 if filters is None else filters.data_ptr(),
                self._scratch.data_ptr(),
                0,
            )

    def _filters_of_rows(self, filters: torch.Tensor | None) -> NDArray[Any] | None:
        if filters is None:
            return None
        of_rows = filters if self._requests is None else filters[self._requests.clamp(min=0).long()]
        return of_rows.contiguous().numpy().view(FILTER)[:, 0]

    def _described(self, logits: torch.Tensor) -> host.Logits:
        if logits.shape[0] != self._rows:
            raise ShapeError("logits", got=f"{logits.shape[0]} rows", expected=f"{self._rows}, as were read")
        return host.describe_logits(logits, self._marking.vocab_size)
