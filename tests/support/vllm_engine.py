"""vLLM's own batch and settings, loaded from its wheel, with a CPU copy of its Triton code.

vLLM cannot be installed together with these tests: it pins another torch. .ci/run puts its Python sources on
the path, and `vllm_stubs` replaces the packages that they import and never call here. V1's persistent batch
and sampler are vLLM's. V2's are written in Triton, which needs a GPU: `Slots` does on the CPU what vLLM's
`RequestState`, `expand_idx_mapping`, `combine_sampled_and_draft_tokens` and `post_update` do.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import iet
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme
from iet.native import reference
from tests.support import vllm_stubs

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm's sources are not on the path (.ci/run puts them there)", allow_module_level=True)
torch = pytest.importorskip("torch")
vllm_stubs.install()

from vllm import SamplingParams  # noqa: E402
from vllm.v1.sample import logits_processor as v1  # noqa: E402
from vllm.v1.worker.gpu.sample import logits_processor as v2  # noqa: E402

from iet.generation import vllm as adapter  # noqa: E402
from iet.generation.free import free_of_environment, request_key  # noqa: E402
from iet.generation.vllm import settings  # noqa: E402
from iet.generation.vllm import v2 as v2_marker  # noqa: E402

IETLogitsProcessor = adapter.IETLogitsProcessor
V2Marker, RequestKeys = v2_marker.V2Marker, settings.RequestKeys
read_settings = settings.read_settings
forget_settings = settings._read.cache_clear

NAME = "iet.generation.vllm:IETLogitsProcessor"
V, WIDTH, AGENTS = 97, 101, ("planner", "critic", "writer")
CPU = torch.device("cpu")


def host_of(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry]:
    """Return a function that creates a registry of three agents and names it in the environment.

    `free`: number of first free tokens, and rate of the others; no token is free by default.
    """

    def made(free: tuple[int, float] = (0, 0.0), **scheme: Any) -> Registry:
        for name, value in zip(("FIRST", "RATE"), free, strict=True):
            monkeypatch.setenv(f"IET_FREE_{name}", str(value))
        path = folder / "host.json"
        registry = Registry.create(
            path, vocab_size=V, unmarked_ids=(0, 1), scheme=Scheme(**scheme), overwrite=True
        )
        for name in AGENTS:
            registry.add(name)
        forget_settings()  # the path is that of the test before
        monkeypatch.setenv("IET_REGISTRY", str(path))
        return registry

    return made


def config(width: int = WIDTH, **model: Any) -> Any:
    """As much of a VllmConfig as vLLM's loaders and the processor read."""
    return SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: width, is_diffusion=False, **model),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        speculative_config=None,
    )


@dataclasses.dataclass
class Request:
    """A request as the test sees it."""

    id: str
    params: Any
    agent: str | None
    prompt: list[int]
    output: list[int] = dataclasses.field(default_factory=list)
    computed: int = 0  # tokens of a prefill that the model has seen

    @property
    def history(self) -> list[int]:
        return self.prompt + self.output


def draw_request(rng: np.random.Generator, number: int, family: str = "fourier") -> Request:
    agent = [*AGENTS, None, None][int(rng.integers(5))]
    temperature = float(rng.choice([0.0, 0.5, 1.0, 1.3]))
    sampling: dict[str, Any] = {}
    if family == "gumbel":
        temperature = max(temperature, 0.5)
        parameters: dict[str, Any] = {"top_k": 20, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.3}
        parameters |= {"presence_penalty": 0.5, "frequency_penalty": 0.4}
        sampling = {name: value for name, value in parameters.items() if rng.random() < 0.3}
    arguments = {None: {"iet_unmarked": True} if rng.random() < 0.5 else None}.get(
        agent, {"iet_agent": agent}
    )
    if agent is not None and rng.random() < 0.5:
        arguments["iet_session"] = f"run-{int(rng.integers(3))}"
    params = SamplingParams(
        temperature=temperature, max_tokens=100, seed=number, extra_args=arguments, **sampling
    )
    return Request(f"r{number}", params, agent, rng.integers(0, WIDTH, int(rng.integers(1, 9))).tolist())


def marked(
    row: Any, history: list[int], request: Request, registry: Registry, *, penalised: bool = True
) -> np.ndarray[Any, Any]:
    """Return one row as it should become, by the op itself on a context worked out here.

    `penalised`: penalties are already applied to the row, as in the V2 runner.
    """
    session = (request.params.extra_args or {}).get("iet_session")
    registry = registry if session is None else registry.session(session)
    scheme, wanted = registry.profile.scheme, row.numpy().copy()[None]
    words = scheme.n_gram - 1
    if scheme.family == "gumbel":
        return chosen_in(wanted[0], history, request, registry, penalised)
    if request.agent is not None and len(history) >= words:
        greedy = request.params.temperature == 0
        temperature = 1.0 if greedy or scheme.placement == "raw" else request.params.temperature
        slot = registry.slot(request.agent)
        iet.embed_(wanted, [history[len(history) - words :]], [slot], registry, temperature=temperature)
    return wanted[0]


def chosen_in(
    row: np.ndarray[Any, Any], history: list[int], request: Request, registry: Registry, penalised: bool
) -> np.ndarray[Any, Any]:
    """Return the row with a raised logit of the token that the keyed noise selects, if the row is marked.

    If vLLM applies penalties afterwards, only that token is left.
    """
    scheme = registry.profile.scheme
    words = scheme.n_gram - 1
    contexts = [tuple(history[at : at + words]) for at in range(len(history) - words + 1)]
    if request.agent is None or not contexts or {0, 1} & {*contexts[-1]}:
        return row
    count = contexts[:-1].count(contexts[-1])
    key, position = request_key(f"seed {request.params.seed}"), len(history) - len(request.prompt)
    if free_of_environment().are_free(np.array([key]), np.array([position]))[0]:
        return row
    if any(id >= V for id in contexts[-1]):
        return row
    final = sampled_from(row if penalised else penalties(row, history, request), request.params)
    iet.embed_(final[None], [contexts[-1]], [registry.slot(request.agent)], registry, counts=[count])
    token = int(final.argmax())
    active = (
        request.params.repetition_penalty,
        request.params.presence_penalty,
        request.params.frequency_penalty,
    )
    if not penalised and active != (1.0, 0.0, 0.0):
        return np.where(np.arange(len(row)) == token, row, np.float32(-np.inf))
    expected = row.copy()
    temperature = np.float32(request.params.temperature)
    expected[token] = reference.forced_logit(row.max(), temperature, float(np.finfo(np.float32).max))
    return expected


def penalties(
    row: np.ndarray[Any, Any], history: list[int], request: Request
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return logits as OpenAI's and Keskar et al.'s penalties change them."""
    changed, params = row.astype(np.float32), request.params
    for id in {*history}:
        value = changed[id]
        changed[id] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for id in {*request.output}:
        changed[id] -= np.float32(params.frequency_penalty * request.output.count(id))
        changed[id] -= np.float32(params.presence_penalty)
    return changed


def sampled_from(row: np.ndarray[Any, Any], params: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the logits that vLLM samples from: temperature, min-p, top-k, top-p."""
    final = (row / np.float32(params.temperature)).astype(np.float32)
    if params.min_p > 0:
        final[final < final.max() + np.log(np.float32(params.min_p))] = -np.inf
    if params.top_k > 0:
        final[final < np.sort(final)[-params.top_k]] = -np.inf
    if params.top_p < 1:
        order = np.argsort(final, kind="stable")
        shares = np.exp(final[order].astype(np.float64) - final.max())
        dropped = np.cumsum(shares / shares.sum()) <= 1 - params.top_p
        dropped[-1] = False
        final[order[dropped]] = -np.inf
    return final


class Batch:
    """vLLM's persistent batch, driven as its model runner drives it."""

    def __init__(self, *, by_config: bool = True, size: int = 6, width: int = WIDTH) -> None:
        from vllm.v1.worker.gpu_input_batch import InputBatch

        self.processors = v1.build_logitsprocs(config(width), CPU, False, False, [NAME])
        self.batch = InputBatch(
            max_num_reqs=size,
            max_model_len=512,
            max_num_batched_tokens=512,
            device=CPU,
            vocab_size=width,
            block_sizes=[16],
            max_num_blocks_per_req=[32],
            logitsprocs=self.processors,
            logitsprocs_need_output_token_ids=by_config,
        )
        self.states: dict[str, Any] = {}

    def add(self, request: Request) -> None:
        from vllm.v1.worker.gpu_input_batch import CachedRequestState

        state = CachedRequestState(
            req_id=request.id,
            prompt_token_ids=list(request.prompt),
            mm_features=[],
            sampling_params=request.params,
            generator=None,
            block_ids=([0],),
            num_computed_tokens=0,
            output_token_ids=list(request.output),
        )
        self.states[request.id] = state
        self.batch.add_request(state)

    def sampled(self, row: int, token: int) -> None:
        """Book a token, as `_bookkeeping_sync` does."""
        end = self.batch.num_tokens_no_spec[row]
        self.batch.token_ids_cpu[row, end] = token
        self.batch.num_tokens_no_spec[row] = end + 1
        self.states[self.batch.req_ids[row]].output_token_ids.append(token)

    def apply(self, logits: Any) -> Any:
        for processor in self.batch.sampling_metadata.logitsprocs.non_argmax_invariant:
            logits = processor.apply(logits)
        return logits


class Slots:
    """State of vLLM's `RequestState`, on the CPU, and a step of its model runner."""

    def __init__(self, size: int, length: int = 512) -> None:
        self.device, self.max_num_reqs, self.vocab_size = CPU, size, WIDTH
        self.all_token_ids = SimpleNamespace(gpu=torch.zeros(size, length, dtype=torch.int32))
        self.prompt_len = SimpleNamespace(gpu=torch.zeros(size, dtype=torch.int32))
        lengths = torch.zeros(size, dtype=torch.int32)
        self.prefill_len = SimpleNamespace(gpu=lengths, np=lengths.numpy())
        self.total_len = SimpleNamespace(gpu=torch.zeros(size, dtype=torch.int32))
        self.state = v2.LogitsProcRequestState.from_request_state(self)
        self.free = list(range(size))
        self.slot_of: dict[str, int] = {}

    def add(self, request: Request, processor: Any) -> bool:
        slot = self.slot_of[request.id] = self.free.pop()
        self.prompt_len.gpu[slot] = len(request.prompt)
        self.prefill_len.gpu[slot] = self.total_len.gpu[slot] = len(request.history)
        # Tokens of the slot's last request stay after the end.
        self.all_token_ids.gpu[slot, : len(request.history)] = torch.tensor(request.history)
        return bool(processor.add_request(slot, request.params))

    def remove(self, request: Request) -> None:
        self.free.append(self.slot_of.pop(request.id))

    def context(self, rows: list[tuple[Request, list[int]]], padding: int = 0) -> Any:
        """Lay a step out: each request with its drafts, then rows of padding."""
        slots = [self.slot_of[request.id] for request, _ in rows]
        expanded, local, inputs = [], [], []
        for slot, (request, drafts) in zip(slots, rows, strict=True):
            expanded += [slot] * (1 + len(drafts))
            local += range(1 + len(drafts))
            inputs += [request.history[-1], *drafts]
        expanded, local, inputs = expanded + [-1] * padding, local + [0] * padding, inputs + [-7] * padding
        return v2.LogitsContext(
            expanded_idx_mapping=torch.tensor(expanded),
            idx_mapping=torch.tensor(slots),
            idx_mapping_np=np.array(slots, dtype=np.intp),
            expanded_local_pos=torch.tensor(local, dtype=torch.int32),
            input_ids=torch.tensor(inputs, dtype=torch.int32),
            pos=torch.zeros(len(expanded), dtype=torch.int64),
            # Padded, as vLLM has them.
            seq_lens_upper_bound_np=np.array(
                [*(len(request.history) + len(drafts) for request, drafts in rows), 0, 0]
            ),
        )

    def commit(self, request: Request, tokens: list[int]) -> None:
        """Append what was sampled, as `post_update` does."""
        slot, end = self.slot_of[request.id], len(request.history)
        self.all_token_ids.gpu[slot, end : end + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.total_len.gpu[slot] += len(tokens)
        request.output += tokens
