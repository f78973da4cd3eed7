"""Run native operations on unusual vocabularies, types and strides; sanitizers abort at the first fault."""

import pathlib
import sys

# Import the sanitized copy of the package, even if another one is installed.
sys.meta_path = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
sys.path.insert(0, str(pathlib.Path("build/sanitized").resolve()))

import numpy as np  # noqa: E402

import iet  # noqa: E402
from iet import kernels  # noqa: E402
from iet.marks.foreign import waterfall  # noqa: E402
from iet.native import load as native  # noqa: E402
from iet.native import reference  # noqa: E402

assert "sanitized" in iet.__file__, iet.__file__
assert iet.backends().host == "cpu", iet.backends()
rng = np.random.default_rng(0)
count = 0
for isa in iet.backends().isas:
    native.cpu.select_isa(isa)
    for vocab_size in (1, 2, 31, 32, 33, 255, 257, 1000, 32003, 128256):
        for n_gram, family, unmarked in (
            (2, "fourier", ()),
            (5, "fourier", (0,)),
            (16, "fourier", ()),
            (4, "gumbel", (0,)),
        ):
            scheme = iet.Scheme(n_gram=n_gram, family=family)
            registry = iet.Registry.create(
                None, vocab_size=vocab_size, unmarked_ids=unmarked if vocab_size > 2 else (), scheme=scheme
            )
            for i in range(3):
                registry.add(f"agent {i}", secret=bytes([i]) * 32)
            ids = rng.integers(0, vocab_size + 2, 700)
            scores = iet.score_tokens(ids, registry)
            keys = registry.scoring_keys()
            expected = reference.score_tokens(keys.marking, ids[:50])
            assert np.array_equal(scores[:50], expected)
            cuts = np.sort(rng.integers(0, 701, 40))
            spans = [kernels.score_spans(ids, cuts, registry, num_threads=threads) for threads in (1, 3)]
            assert np.array_equal(spans[0], spans[1])
            kernels.permute(np.arange(vocab_size), rng.integers(0, 2**63, vocab_size), vocab_size)
            for dtype in (np.float32, np.float16):
                wide = np.zeros((5, 2 * vocab_size + 3), dtype=dtype)
                for view in (wide, wide[:, ::2], wide[1:3, 1:]):
                    contexts = rng.integers(0, vocab_size, (len(view), n_gram - 1))
                    slots, before = rng.integers(-1, 3, len(view)), view.copy()
                    iet.embed_(view, contexts, slots, registry, num_threads=1 + count % 3)
                    if vocab_size <= 1000:
                        kappas = np.full(len(view), scheme.kappa, np.float32)
                        reference.embed_(keys.marking, before, contexts, slots, kappas)
                        assert np.array_equal(view, before)
                    count += 1
    for vocab_size in (1, 2, 31, 257, 32003, 128256):
        for n_gram in (2, 16):
            contexts = rng.integers(0, vocab_size, (12, n_gram - 1)).astype(np.uint32)
            sizes = np.minimum([0, 1, 1, 1, 2, 3, 24, 25, 26, 300, 1, 1], vocab_size)
            tokens = [np.sort(rng.choice(vocab_size, size, replace=False)) for size in sizes]
            offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
            ids = np.array([0, 42, 2**32 - 1], dtype=np.uint32)
            flat = np.concatenate(tokens).astype(np.uint32)
            ranks = waterfall._ranks(vocab_size, ids, contexts, offsets, flat, 2)
            for context, start, end in zip(contexts, offsets[:-1], offsets[1:], strict=True):
                whole = waterfall.waterfall_permutation(42, context.tolist(), vocab_size)
                assert np.array_equal(ranks[1, start:end], whole[flat[start:end]])
                count += 1
    for vocab_size in (2, 33, 1500):
        ids = rng.integers(-1, vocab_size + 1, 700)
        hexadecimal = [f"{key:x}" for key in range(1, 19)]
        layers = rng.integers(0, 2**62, (18, 7)).tolist()
        for tokens in (0, 1, 255, 256, 257, 700):
            for n_gram in (2, 5, 8, 65):
                for scheme, keys in (("vllm-gumbel", list(range(18))), ("sglang-gumbel", hexadecimal)):
                    found = iet.score_tokens(
                        ids[:tokens], iet.EngineKeys.unnamed(scheme, keys, n_gram=n_gram), num_threads=2
                    )
                    assert found.shape == (tokens, 18)
                    count += 1
            for n_gram, scheme, parameters in (
                (17, "vllm-gumbel", {"prf": "hmac_sha256"}),
                (5, "vllm-red-green", {}),
                (65, "vllm-synthid", {"depth": 100}),
                (1, "vllm-sbw", {}),
                (17, "vllm-sbw", {"seeding_scheme": "lefthash"}),
            ):
                keys = iet.EngineKeys.unnamed(scheme, list(range(1, 19)), n_gram=n_gram, **parameters)
                assert iet.score_tokens(ids[:tokens], keys, num_threads=2).shape == (tokens, 18)
                count += 1
            for size in (2, 256, 1 << 16):
                iet.score_tokens(
                    ids[:tokens], iet.EngineKeys.unnamed("synthid", layers, sampling_table_size=size)
                )
            for ratio in (0.5, 0.9):
                iet.score_tokens(
                    ids[:tokens],
                    iet.EngineKeys.unnamed("kgw", [1, 5], vocab_size=vocab_size, greenlist_ratio=ratio),
                )

# Whole texts through the loops, and each loop alone: all instruction sets give the same bits.
sys.path.append(".")
from tests.native.test_loops import DRAWN  # noqa: E402

registries = []
for family, n_gram in (("fourier", 2), ("gumbel", 4)):
    registry = iet.Registry.create(None, vocab_size=500, scheme=iet.Scheme(family=family, n_gram=n_gram))
    registry.add_many([f"agent {i}" for i in range(20)])
    registries.append(registry)
found = []
for isa in iet.backends().isas:
    native.cpu.select_isa(isa)
    rng = np.random.default_rng(1)
    read = []
    for turn in range(300):
        tokens = int((0, 1, 15, 16, 17, rng.integers(2, 400), rng.integers(400, 2500))[turn % 7])
        agents = int(rng.choice([1, 2, 7, 8, 9, 17, 40]))
        scores = rng.normal(size=(tokens, agents)).astype(("<f4", "<f8")[turn % 2])
        ids = rng.integers(0, (3, 60, 2000)[turn % 3], tokens)
        if tokens > 1000:  # a repeated passage
            ids[-300:] = ids[:300]
        pairs = kernels.pair_numbers(ids % 500, registries[turn % 2]) if turn % 4 else None
        one = iet.decoding.decode(
            scores,
            family=("fourier", "gumbel")[turn % 2],
            pairs=pairs,
            allow_unattributed=turn % 2 == 0,
            block=int(rng.integers(1, 40)),
            resolution=int(rng.integers(1, 9)),
        )
        read.append((one.token_agents, one.posterior))
        report = iet.Auditor(registries[turn % 2]).audit(token_ids=ids % 500)
        read.append((repr(report.segments), repr(report.agents)))
        count += 2
    for name in sorted(DRAWN):
        for turn in range(100):
            getattr(native.cpu.loops, name)(*DRAWN[name](rng, turn))
            count += 1
    found.append(read)
for others in found[1:]:
    for ours, theirs in zip(found[0], others, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert np.array_equal(one, other)
print(f"{count} batches, no fault")
