"""Are the marks of vLLM's tree read number for number? Scores against the engines' own code, for many keys.

    python -m benchmarks.accuracy.engine_answers -o benchmarks/results/foreign_marks.json

It needs torch, sbw 1.0.0, what `.ci/wheels` unpacks, and the files of `benchmarks.engine_wheels.PULLS`. Keys
and token ids are drawn at random; a fifth of the ids repeats. A row is left out, and named, if its code is
missing. It fails if a score differs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import iet
from benchmarks import engine_wheels
from benchmarks.recording import columns, command, environment, exit_code, parser, write
from iet.errors import InputError
from iet.marks.foreign.engines import vllm_dual_keys

Scores = NDArray[np.float64]

TOLERANCE = {"vllm-gumbel": 4e-7, "vllm-synthid": 1e-6}
"""Largest difference that rounding to float32 makes, relative to max(1, score); green lists have none."""

_TREE = "vllm/v1/watermarking"
_FEW_IDS = 500  # SBW's sampler makes the lists of the whole vocabulary


@dataclasses.dataclass(frozen=True)
class Case:
    """A mark, its parameters, and other code that scores it.

    Attributes:
        scheme, parameters: of `iet.EngineKeys`.
        source: what the code is, for the table.
        score: (token ids [T], key) -> scores [T].
        missing: returns why the code cannot be run, None if it can.
        key_bits: keys are drawn below 2 to this power.
        first: number of ids that have no score.
        vocab_size: ids are drawn below it.
    """

    scheme: str
    parameters: dict[str, Any]
    source: str
    score: Callable[[NDArray[np.int64], int], Scores]
    missing: Callable[[], str | None]
    key_bits: int = 64
    first: int = 0
    vocab_size: int = 50_000


def _scored(detector: Any, ids: NDArray[np.int64]) -> Scores:
    """Scores [T], or [T, D], of one of vLLM's detectors."""
    scores = detector._score_tokens(*detector._prepare_inputs(ids.tolist()))
    return np.asarray(scores.numpy(), np.float64)


def _wheel_missing() -> str | None:
    return engine_wheels.missing("vllm")


def _gumbel(width: int) -> Case:
    def score(ids: NDArray[np.int64], key: int) -> Scores:
        vllm = engine_wheels.detector("vllm")
        return _scored(
            vllm.GumbelWatermarkDetector(key, context_width=width, deduplicate_contexts=False), ids
        )

    return Case(
        "vllm-gumbel",
        {"n_gram": width + 1},
        "wheel vllm 0.33.0, GumbelWatermarkDetector",
        score,
        _wheel_missing,
    )


def _hmac(width: int) -> Case:
    path = f"{_TREE}/prfs/hmac_sha256.py"

    def score(ids: NDArray[np.int64], key: int) -> Scores:
        vllm = engine_wheels.detector("vllm")
        prf = engine_wheels.pull(path).HMACSHA256PRF(key)
        detector = vllm.GumbelWatermarkDetector(0, context_width=width, prf=prf, deduplicate_contexts=False)
        return _scored(detector, ids)

    return Case(
        "vllm-gumbel",
        {"n_gram": width + 1, "prf": "hmac_sha256"},
        "repository 3da8712, HMACSHA256PRF, in the wheel's detector",
        score,
        lambda: engine_wheels.missing_pull(path),
        256,
    )


def _red_green_of_wheel(width: int, gamma: float) -> Case:
    def score(ids: NDArray[np.int64], key: int) -> Scores:
        detector = engine_wheels.detector("vllm").GumbelWatermarkDetector(
            key, context_width=width, deduplicate_contexts=False
        )
        contexts, targets = detector._prepare_inputs(ids.tolist())
        uniforms = detector.prf.uniform(contexts, targets.unsqueeze(-1)).squeeze(-1)
        return np.asarray((uniforms < gamma).double().numpy())

    return Case(
        "vllm-red-green",
        {"n_gram": width + 1, "gamma": gamma},
        "wheel vllm 0.33.0, PhiloxPRF.uniform < gamma in torch",
        score,
        _wheel_missing,
    )


def _red_green(width: int, gamma: float) -> Case:
    path = f"{_TREE}/red_green.py"

    def score(ids: NDArray[np.int64], key: int) -> Scores:
        kind = engine_wheels.pull(path).RedGreenWatermarkDetector
        return _scored(kind(key, context_width=width, gamma=gamma, deduplicate_contexts=False), ids)

    return Case(
        "vllm-red-green",
        {"n_gram": width + 1, "gamma": gamma},
        "repository 381f945, RedGreenWatermarkDetector",
        score,
        lambda: engine_wheels.missing_pull(path),
    )


def _standardised(g_values: Scores) -> Scores:
    return np.asarray((2 * g_values - 1).sum(axis=1) / np.sqrt(g_values.shape[1]))


def _synthid(width: int, depth: int) -> Case:
    path = f"{_TREE}/synthid.py"

    def score(ids: NDArray[np.int64], key: int) -> Scores:
        kind = engine_wheels.pull(path).SynthIDWatermarkDetector
        detector = kind(key, context_width=width, depth=depth, deduplicate_contexts=False)
        return _standardised(_scored(detector, ids))

    return Case(
        "vllm-synthid",
        {"n_gram": width + 1, "depth": depth},
        "repository 373305d, SynthIDWatermarkDetector",
        score,
        lambda: engine_wheels.missing_pull(path),
    )


def _synthid_of_wheel(width: int, depth: int) -> Case:
    def score(ids: NDArray[np.int64], key: int) -> Scores:
        philox = engine_wheels.detector("vllm", f"{_TREE.replace('/', '.')}.prfs.philox")
        detector = engine_wheels.detector("vllm").GumbelWatermarkDetector(
            key, context_width=width, deduplicate_contexts=False
        )
        contexts, targets = detector._prepare_inputs(ids.tolist())
        rounds, bits = philox._philox4x32_10, []
        philox.uint32_to_uniform = lambda words: words
        for start in range(0, depth, 32):
            calls = iter(range(-(-width // 4) + 1))  # one for every four ids, and one for the token

            def with_stream(counter: Any, key: Any, calls: Iterator[int] = calls, start: int = start) -> Any:
                if next(calls) == -(-width // 4):
                    key = key[0] ^ 0x53594E54, key[1] ^ start // 32
                return rounds(counter, key)

            philox._philox4x32_10 = with_stream
            words = philox.PhiloxPRF(key).uniform(contexts, targets.unsqueeze(-1)).squeeze(-1).numpy()
            bits += [words >> bit & 1 for bit in range(min(32, depth - start))]
        return _standardised(np.array(bits, np.float64).T)

    return Case(
        "vllm-synthid",
        {"n_gram": width + 1, "depth": depth},
        "wheel vllm 0.33.0, PhiloxPRF, with the streams of repository 373305d added",
        score,
        _wheel_missing,
    )


def _sbw_of_repository(width: int, seeding_scheme: str, gamma: float) -> Case:
    path = f"{_TREE}/sbw.py"

    def score(ids: NDArray[np.int64], key: int) -> Scores:
        import torch

        module = engine_wheels.pull(path)
        bias = getattr(module, f"_sbw_{seeding_scheme}_inner")
        module._sbw_philox_compiled = module._sbw_philox4x32_10_i32
        contexts = torch.from_numpy(ids).unfold(0, width, 1)[: len(ids) - width]
        logits, limit = torch.zeros(len(contexts), _FEW_IDS), torch.tensor(int(gamma * 0x7FFFFFFF))
        green = bias(contexts, logits, limit, 1.0, torch.tensor(key))
        scores = np.zeros(len(ids))
        scores[width:] = green[torch.arange(len(contexts)), torch.from_numpy(ids[width:])]
        return scores

    n_gram = width if seeding_scheme == "selfhash" else width + 1
    return Case(
        "vllm-sbw",
        {"n_gram": n_gram, "seeding_scheme": seeding_scheme, "gamma": gamma},
        "repository caaac7c, the sampler of sbw.py",
        score,
        lambda: engine_wheels.missing_pull(path),
        63,
        width,
        _FEW_IDS,
    )


def _sbw_missing() -> str | None:
    absent = [name for name in ("torch", "scipy", "sbw") if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed" if absent else None


def _sbw_of_package(name: str, n_gram: int, seeding_scheme: str, gamma: float) -> Case:
    def score(ids: NDArray[np.int64], key: int) -> Scores:
        import torch
        from sbw import batch

        batch._philox4x32_10_compiled = batch._philox4x32_10
        mark = batch.WatermarkBatch(vocab=list(range(10)), gamma=gamma, seeding_scheme=name, hash_key=key)
        width = mark.context_width
        first = width - mark.self_salt
        windows = torch.from_numpy(ids).unfold(0, width, 1)[: len(ids) - first]
        green = batch.philox_at_positions(mark._compute_seeds(windows), torch.from_numpy(ids[first:])) < gamma
        return np.append(np.zeros(first), green.double().numpy())

    return Case(
        "vllm-sbw",
        {"n_gram": n_gram, "seeding_scheme": seeding_scheme, "gamma": gamma},
        f"package sbw 1.0.0, {name}",
        score,
        _sbw_missing,
        63,
        n_gram - 1,
    )


CASES: Sequence[Case] = (
    *(_gumbel(width) for width in (1, 4, 7)),
    *(_hmac(width) for width in (1, 4, 16)),
    *(_red_green_of_wheel(width, gamma) for width, gamma in ((1, 0.5), (4, 0.25), (6, 0.3))),
    *(_red_green(width, gamma) for width, gamma in ((1, 0.5), (4, 0.25), (6, 0.3))),
    *(_synthid_of_wheel(width, depth) for width, depth in ((1, 1), (4, 32), (6, 65))),
    *(_synthid(width, depth) for width, depth in ((1, 1), (4, 32), (6, 65))),
    _sbw_of_package("gpu-selfhash", 4, "selfhash", 0.5),
    _sbw_of_package("gpu-ff-anchored_minhash_prf-1-True", 1, "selfhash", 0.25),
    _sbw_of_package("gpu-simple_1", 2, "lefthash", 0.5),
    _sbw_of_package("gpu-ff-additive_prf-4-False", 5, "lefthash", 0.3),
    *(_sbw_of_repository(width, "selfhash", gamma) for width, gamma in ((1, 0.5), (4, 0.25))),
    *(_sbw_of_repository(width, "lefthash", gamma) for width, gamma in ((1, 0.5), (4, 0.25))),
)


def compare(case: Case, num_keys: int, num_tokens: int, seed: int) -> dict[str, Any]:
    """Return the row of a case: keys, scores, and how many of them differ.

    Args:
        case: an entry of `CASES` whose code is there.
        num_keys: random keys, and the least and the largest one.
        num_tokens: random ids, the second half with a repeated passage.
        seed: of keys and ids.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, case.vocab_size, num_tokens)
    ids[num_tokens // 2 :][: num_tokens // 5] = ids[num_tokens // 5 :][: num_tokens // 5]
    drawn = [int.from_bytes(rng.bytes(32), "little") % (1 << case.key_bits) for _ in range(num_keys)]
    keys = list(dict.fromkeys([1, (1 << case.key_bits) - 1, *drawn]))
    ours = iet.score_tokens(ids, iet.EngineKeys.unnamed(case.scheme, keys, **case.parameters))
    expected = np.stack([case.score(ids, key) for key in keys], axis=1)
    differences = np.abs(ours - expected)[case.first :] / np.maximum(1, np.abs(expected[case.first :]))
    return {
        "scheme": case.scheme,
        "parameters": ", ".join(f"{name} {value}" for name, value in case.parameters.items()),
        "source": case.source,
        "keys": len(keys),
        "scores": differences.size,
        "different": int((differences > TOLERANCE.get(case.scheme, 0)).sum()),
        "largest": float(differences.max()),
    }


def compare_dual_keys(num_keys: int, num_tokens: int, seed: int) -> dict[str, Any]:
    """Return the row of vLLM's `dual_key_gumbel`: two columns of scores, averaged as its detector does."""
    rng = np.random.default_rng(seed)
    ids, vllm = rng.integers(0, 50_000, num_tokens), engine_wheels.detector("vllm")
    largest = 0.0
    for key in rng.integers(0, 1 << 63, num_keys).tolist():
        detector = vllm.DualKeyGumbelWatermarkDetector(key, alpha=0.1, deduplicate_contexts=False)
        expected = _scored(detector, ids)
        ours = iet.score_tokens(ids, iet.EngineKeys.unnamed("vllm-gumbel", vllm_dual_keys(key))) @ [0.9, 0.1]
        largest = max(largest, float((np.abs(ours - expected) / np.maximum(1, expected)).max()))
    return {
        "scheme": "vllm-gumbel",
        "parameters": "vllm_dual_keys, alpha 0.1",
        "source": "wheel vllm 0.33.0, DualKeyGumbelWatermarkDetector",
        "keys": num_keys,
        "scores": num_keys * num_tokens,
        "different": int(largest > TOLERANCE["vllm-gumbel"]),
        "largest": largest,
    }


_NOTES = """\
* vLLM: its wheel 0.33.0 has `gumbel` and `dual_key_gumbel` with Philox, and lacks HMAC-SHA256, red-green
  lists, SynthID-Text and SBW. Those are compared with functions transcribed from its repository's files
  at the commits below. Whether a release will contain them, or in this form, is unknown.
* HMAC-SHA256 is in early commits only; later ones accept only "philox". No commit joins it with red-green
  lists, as `vllm-red-green` can. The four numbers in that commit's `tests/watermarking/test_prf.py` are
  met too. Its Philox numbers differ from the wheel's, so that Philox is not read.
* SynthID-Text takes bits of Philox words under one key. transformers looks bits up in a table, with a key
  for each depth, so its processor is no check of this mark. Earlier commits differ: 789eef7 is
  transformers' (scheme `synthid`), 0265d6b has no streams and is not read. "With the streams added" is the
  wheel's Philox with two XORs of the last key.
* SBW: the commit's sampler and the package agree. The commit's detector hashes the ids of "lefthash", its
  sampler does not; the sampler is followed. Of the package, `gpu-` schemes are read; the others shuffle
  with a table. Contexts that vLLM leaves unmarked because they repeat dilute the evidence.
* What ran: detectors and pseudorandom functions, and of SBW's commit the two functions of its sampler, on
  the CPU and without torch.compile. vLLM's CUDA kernels did not run.

Commits of vLLM's repository:"""


def markdown(result: dict[str, Any]) -> str:
    """Return the table of a result."""
    shown = columns(
        result["rows"],
        {
            "scheme": "{scheme}",
            "parameters": "{parameters}",
            "compared with": "{source}",
            "keys": "{keys:,}",
            "scores": "{scores:,}",
            "different": "{different:,}",
            "largest difference": "{largest:.1e}",
        },
    )
    missing = "".join(f"\n\nNot compared: {line}." for line in result["missing"])
    commits = "\n".join(f"* `{path}` at `{commit}`" for path, commit in engine_wheels.PULLS.items())
    return (
        f"`{result['command']}`\n\nScores of random keys and random ids against other code. Green lists must"
        " be equal; other scores may differ by the rounding to float32. Differences are relative to"
        f" max(1, score).\n\n{shown}{missing}\n\n{_NOTES}\n\n{commits}"
    )


def main() -> None:
    line = parser("benchmarks.accuracy.engine_answers", __doc__)
    line.add_argument("--keys", type=int, default=200, help="random keys of each row")
    line.add_argument("--tokens", type=int, default=300)
    line.add_argument("--seed", type=int, default=0)
    options = line.parse_args()

    rows, missing = [], []
    for case in CASES:
        why = case.missing()
        if why is None:
            rows.append(compare(case, options.keys, options.tokens, options.seed))
        else:
            missing.append(f"{case.scheme} with {case.source} ({why})")
    if _wheel_missing() is None:
        rows.insert(3, compare_dual_keys(options.keys, options.tokens, options.seed))
    result = {
        "command": command(line, options),
        "environment": environment("torch", "sbw"),
        "commits": engine_wheels.PULLS,
        "rows": rows,
        "missing": sorted(set(missing)),
    }
    write(options.output, result, markdown(result))
    different = [row["source"] for row in rows if row["different"]]
    if different:
        raise InputError(f"scores: got other ones than {different}, expected equal ones")


if __name__ == "__main__":
    sys.exit(exit_code(main))
