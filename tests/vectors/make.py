"""Write the known answers of the scheme: `python tests/vectors/make.py`.

The file is the constitution of the format: every backend is tested against it, and it changes only with
the version of the scheme.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from iet import reference
from iet.registry import derive_frequency, derive_subkey
from iet.scheme import SCHEME_VERSION, Profile, Scheme

VOCAB_SIZES = (1, 2, 31, 32, 33, 255, 257, 32000, 32003, 128256, 151936, 262144, 1 << 24)
PATH = pathlib.Path(__file__).with_name(f"scheme_v{SCHEME_VERSION}.json")


def bits(values: np.ndarray[Any, Any]) -> list[str]:
    """Return the bits of floats as hex, most significant digit first."""
    unsigned = {4: np.uint32, 2: np.uint16}[values.dtype.itemsize]
    return [f"{int(b):0{2 * values.dtype.itemsize}x}" for b in values.view(unsigned)]


def make() -> dict[str, Any]:
    rng = np.random.default_rng(20250601)
    secrets = [bytes(range(32)), bytes(32), rng.bytes(32)]
    subkeys = [derive_subkey(secret) for secret in secrets]
    keys = np.array([np.frombuffer(key, dtype=np.uint8) for key in subkeys])

    derive = [
        {
            "secret": secret.hex(),
            "subkey": derive_subkey(secret).hex(),
            "k_p": {str(bound): derive_frequency(secret, bound) for bound in (1, 127, 15999, 64127)},
        }
        for secret in secrets
    ]
    seeds = []
    for i, words in enumerate([*range(1, 16), 1, 2]):
        context = rng.integers(0, 1 << 24, words) if i < 15 else np.arange(words)
        subkey = keys[i % len(keys)]
        seed = int(reference.context_seed(subkey, context))
        seeds.append({"subkey": subkey.tobytes().hex(), "context": context.tolist(), "seed": f"{seed:016x}"})
    permute, phi = [], []
    for vocab_size in VOCAB_SIZES:
        a, b = reference.grid(vocab_size)
        ids = np.unique(np.append(rng.integers(0, vocab_size, 6), [0, vocab_size - 1]))
        for seed in (0, (1 << 64) - 1, int(rng.integers(0, 1 << 64, dtype=np.uint64))):
            ranks = reference.permute(ids, np.uint64(seed), vocab_size)
            entry = {"vocab_size": vocab_size, "a": a, "b": b, "seed": f"{seed:016x}"}
            permute.append({**entry, "ids": ids.tolist(), "ranks": ranks.tolist()})
        for k_p in sorted({1, max(1, min(7, (vocab_size - 1) // 2)), max(1, (vocab_size - 1) // 2)}):
            entry = {"vocab_size": vocab_size, "k_p": k_p, "ranks": ids.tolist()}
            for family in ("fourier", "square"):
                phi.append(
                    {**entry, "family": family, "phi": bits(reference.phi(ids, k_p, vocab_size, family))}
                )

    ops = []
    for vocab_size, n_gram, family, k_p, unmarked in (
        (33, 2, "fourier", 1, ()),
        (40, 2, "fourier", 3, (0, 1, 7)),
        (41, 3, "square", 2, (40,)),
        (257, 5, "fourier", 100, (5,)),
    ):
        profile: dict[str, Any] = {"vocab_size": vocab_size, "family": family, "unmarked_ids": unmarked}
        frequencies = np.full(len(keys), k_p)
        token_ids = rng.integers(0, vocab_size + 1, 40)
        scores = reference.score_tokens(token_ids, n_gram, subkeys=keys, k_p=frequencies, **profile)
        contexts = rng.integers(0, vocab_size, (4, n_gram - 1))
        contexts[1, -1] = unmarked[0] if unmarked else vocab_size
        slots, kappas = np.array([0, 1, -1, 2]), np.array([0.8, 0.8, 0.8, 0.25], dtype=np.float32)
        logits = (4 * rng.standard_normal((4, vocab_size + 2))).astype(np.float32)
        logits[0, 3] = -np.inf
        marked = {}
        for dtype in ("float32", "float16", "bfloat16"):
            row: Any = logits.astype("float32" if dtype == "bfloat16" else dtype)
            row = reference.float32_to_bfloat16(row) if dtype == "bfloat16" else row
            before = row.copy()
            reference.embed_(row, contexts, slots, kappas, subkeys=keys, k_p=frequencies, **profile)
            marked[dtype] = {"logits": bits(before.reshape(-1)), "marked": bits(row.reshape(-1))}
        ops.append(
            {
                **profile,
                "unmarked_ids": list(unmarked),
                "n_gram": n_gram,
                "k_p": k_p,
                "subkeys": [key.hex() for key in subkeys],
                "token_ids": token_ids.tolist(),
                "scored": reference.is_scored(token_ids, n_gram, vocab_size, unmarked).tolist(),
                "scores": [bits(row) for row in scores],
                "contexts": contexts.tolist(),
                "slots": slots.tolist(),
                "kappas": bits(kappas),
                "embed": marked,
            }
        )
    profiles = [
        Profile(Scheme(), 32000),
        Profile(Scheme(kappa=1.0, n_gram=4, k_p="per-agent", placement="raw"), 257, "00ff" * 16, (0, 2, 5)),
        Profile(Scheme(kappa=0.1, k_p=3, family="square"), 1 << 24),
    ]
    return {
        "scheme_version": SCHEME_VERSION,
        "note": "Floats are IEEE bits in hex. Generated by tests/vectors/make.py from iet/reference.py.",
        "derive": derive,
        "seed": seeds,
        "permute": permute,
        "phi": phi,
        "ops": ops,
        "profile": [{"profile": p.to_dict(), "digest": p.digest} for p in profiles],
    }


if __name__ == "__main__":
    content = make()
    lines = [
        f"{json.dumps(key)}: "
        + (
            "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
            if isinstance(value, list)
            else json.dumps(value)
        )
        for key, value in content.items()
    ]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
