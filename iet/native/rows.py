"""Mark rows whose contexts are on the device, in a table of tokens: two kernels a step.

For an engine that stores its requests' tokens on the device (vLLM's V2 runner). The first kernel reads the
table, checks and hashes the contexts, and writes a record of 16 bytes for each row; the second reads the
records. Nothing is copied or waited for, and nothing is allocated after the largest batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iet.errors import ShapeError
from iet.native import cuda, host
from iet.native.load import load_cuda
from iet.native.marking import KernelParams

if TYPE_CHECKING:
    import torch

LEFT_ALONE = -1
"""Third word of the record of a row that is not marked."""


class SequenceRows:
    """The rows of an engine's steps, in memory of their own: read them, then mark logits with them.

        rows = SequenceRows(marking, device)
        rows.read(requests, tokens, lengths, slots, temperatures, places, drafts)
        rows.embed_(logits)

    Both calls queue a kernel on the current stream. One object serves one engine: its next `read` overwrites
    what the last one wrote, so that all calls must be on one stream, or be ordered otherwise.

    Args:
        marking: the keys and their parameters.
        device: a CUDA device with its number; `iet.kernels.prepare` has put the keys there.
        rows: expected maximum number of rows of a step; a larger step allocates more memory.

    Attributes:
        records: int32 [>= rows, 4], of the last `read`: the two halves of the seed, the frequency of φ (or
            `LEFT_ALONE`) and the bits of κ·temperature.
        counts: int32 [>= rows]: the number of earlier occurrences of a row's context in its sequence, if
            `read` was called with `counted`.
    """

    def __init__(self, marking: KernelParams, device: torch.device, rows: int = 1024) -> None:
        self._marking, self._device, self._rows = marking, device, 0
        self._outgrown: list[torch.Tensor] = []  # a captured graph may hold their addresses
        cuda.table(load_cuda(), marking, device)  # now, not in the first step
        self.records, self.counts = self._memory(rows)

    def _memory(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        with torch.inference_mode(False):  # they are written later, in whatever mode
            size = 1 << (rows - 1).bit_length()
            made = torch.zeros(size, 5, dtype=torch.int32, device=self._device)
        return made.view(-1)[: 4 * size].view(size, 4), made.view(-1)[4 * size :]

    def read(
        self,
        requests: torch.Tensor,
        tokens: torch.Tensor,
        lengths: torch.Tensor,
        slots: torch.Tensor,
        temperatures: torch.Tensor,
        offsets: torch.Tensor | None = None,
        drafts: torch.Tensor | None = None,
        *,
        counted: bool = False,
    ) -> None:
        """Queue the kernel that makes a record of each row. Row i comes `places[i]` drafts after its tokens:

            sequence = tokens[requests[i], :lengths[requests[i]]], then drafts[i - places[i] + 1 : i + 1]
            context = the last n-1 ids of it

        A row is not marked if it has no request (below 0) or no key, if the sequence is shorter than the
        context, or if an id of the context is unmarked or a draft below 0. A row is refused if a committed id
        is below 0, or a request, slot or κ is out of range (`iet.native.cuda.Refusals`).

        All tensors are on the device, or in host memory that it can read.

        Args:
            requests: int32 or int64 [rows].
            tokens: int32 or int64 [requests, columns], any strides.
            lengths: int32 or int64 [requests], committed tokens.
            slots: int32 or int64 [requests], -1 for one that is not marked.
            temperatures: float32 [requests]; κ is multiplied by them.
            places: int32 or int64 [rows], or None: 0 everywhere.
            drafts: int32 or int64 [rows], the inputs of the rows; needed with `places`.
            counted: seed rows with the number of earlier occurrences of the context in the sequence, prompt
                and drafts included: only for a marking that is `counted`. O(tokens) more.
        """
        rows = requests.shape[0]
        if rows > self.records.shape[0]:
            self._outgrown.append(self.records)
            self.records, self.counts = self._memory(rows)
        self._rows = rows
        if cuda.capturing(self._device):
            cuda.keep_for_graphs(self.records)
        native = cuda.table(load_cuda(), self._marking, self._device).marking
        with cuda.device_guard(self._device):
            native.rows(
                cuda.stream(self._device),
                rows,
                cuda.address(requests),
                tokens.shape[0],
                cuda.address(tokens),
                tokens.stride(1),
                tokens.shape[1],
                cuda.address(lengths),
                cuda.address(offsets),
                cuda.address(drafts),
                cuda.address(slots),
                temperatures.data_ptr(),
                temperatures.stride(0),
                float(self._marking.kappa),
                cuda.NOWHERE,
                rows,
                cuda.refused(self._device),
                self.records.data_ptr(),
                self.counts.data_ptr() if counted else 0,
                cuda.NOWHERE,
            )

    def are_marked(self) -> torch.Tensor:
        """Return which rows the last `read` will have marked, bool [rows]."""
        return self.records[: self._rows, 2] != LEFT_ALONE

    def embed_(self, logits: torch.Tensor) -> None:
        """Queue the kernel that marks the rows that were read: `iet.embed_`, of the same bits.

        Args:
            logits: float32, float16 or bfloat16 [rows, >= V] on the device; changed in place.

        Raises:
            ShapeError: a wrong shape, dtype or stride.
        """
        layout = host.describe_logits(logits, self._marking.vocab_size).layout
        if logits.shape[0] != self._rows:
            raise ShapeError("logits", got=f"{logits.shape[0]} rows", expected=f"{self._rows}, as were read")
        native = cuda.table(load_cuda(), self._marking, self._device).marking
        with cuda.device_guard(self._device):
            queue, records = cuda.stream(self._device), self.records.data_ptr()
            native.embed(queue, *layout, layout[0], self._rows, cuda.NOWHERE, records)
