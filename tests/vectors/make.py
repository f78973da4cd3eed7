"""Write the known answers of scheme, family gumbel and sessions: `python tests/vectors/make.py`.

The files are the constitution of the format: every backend is tested against them, and they change only
with the version of the scheme, or of the family.
"""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np

from iet.marks.derivation import derive_frequency, derive_session, derive_subkey
from iet.marks.families import FAMILIES
from iet.marks.scheme import SCHEME_VERSION, Profile, Scheme
from iet.native import reference
from iet.native.marking import KernelParams

VOCAB_SIZES = (1, 2, 31, 32, 33, 255, 257, 32000, 32003, 128256, 151936, 262144, 1 << 24)
FOLDER = pathlib.Path(__file__).parent
SEED = 20250601
SESSIONS = ("run-7", "018f3a52-7c1e-7b44-9d0a-6f2f6f1d9e10", "Lauf \u00e4\u4e2d\U0001f600", "s" * 200)
SECRETS = (bytes(range(32)), bytes(32), np.random.default_rng(SEED).bytes(32))


def bits(values: np.ndarray[Any, Any]) -> list[str]:
    """Return the bits of floats as hex, most significant digit first."""
    unsigned = {4: np.uint32, 2: np.uint16}[values.dtype.itemsize]
    return [f"{int(b):0{2 * values.dtype.itemsize}x}" for b in values.view(unsigned)]


def subkeys() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.array([np.frombuffer(derive_subkey(secret), dtype=np.uint8) for secret in SECRETS])


def op(
    rng: np.random.Generator,
    vocab_size: int,
    n_gram: int,
    family: str,
    k_p: int,
    unmarked: tuple[int, ...],
    keys: np.ndarray[Any, np.dtype[np.uint8]] | None = None,
    counts: list[int] | None = None,
) -> dict[str, Any]:
    """Return scores of a text and marked logits under three keys, by default those of `SECRETS`.

    With `counts` of the four rows, under a scheme whose seeds hold them; contexts of the text then return.
    """
    keys = subkeys() if keys is None else keys
    strength = Scheme(family=family).kappa
    frequencies = np.full(len(keys), k_p)
    token_ids = rng.integers(0, vocab_size + 1, 40)
    if counts is not None:
        token_ids = rng.choice([*rng.integers(0, vocab_size, 3), vocab_size], 40, p=[0.5, 0.3, 0.15, 0.05])
    code, counted = FAMILIES[family].code, FAMILIES[family].chooses
    marking = KernelParams(vocab_size, n_gram, family, code, strength, unmarked, keys, frequencies, counted)
    scores = reference.score_tokens(marking, token_ids)
    contexts = rng.integers(0, vocab_size, (4, n_gram - 1))
    contexts[1, -1] = unmarked[0] if unmarked else vocab_size
    slots = np.array([0, 1, -1, 2])
    kappas = np.array([strength, strength, strength, 0.25], dtype=np.float32)
    logits = (4 * rng.standard_normal((4, vocab_size + 2))).astype(np.float32)
    logits[0, 3] = -np.inf
    marked = {}
    for dtype in ("float32", "float16", "bfloat16"):
        row: Any = logits.astype("float32" if dtype == "bfloat16" else dtype)
        row = reference.float32_to_bfloat16(row) if dtype == "bfloat16" else row
        original = row.copy()
        reference.embed_(marking, row, contexts, slots, kappas, None if counts is None else np.array(counts))
        marked[dtype] = {"logits": bits(original.reshape(-1)), "marked": bits(row.reshape(-1))}
    return {
        "vocab_size": vocab_size,
        "family": family,
        "unmarked_ids": list(unmarked),
        "n_gram": n_gram,
        "k_p": k_p,
        "subkeys": [key.tobytes().hex() for key in keys],
        "token_ids": token_ids.tolist(),
        "scored": reference.is_scored(token_ids, n_gram, vocab_size, unmarked).tolist(),
        "scores": [bits(row) for row in scores],
        "contexts": contexts.tolist(),
        "slots": slots.tolist(),
        **({} if counts is None else {"counts": counts}),
        "kappas": bits(kappas),
        "embed": marked,
    }


def make() -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    assert rng.bytes(32) == SECRETS[-1]
    keys = subkeys()

    derive = [
        {
            "secret": secret.hex(),
            "subkey": derive_subkey(secret).hex(),
            "k_p": {str(bound): derive_frequency(secret, bound) for bound in (1, 127, 15999, 64127)},
        }
        for secret in SECRETS
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
            values = bits(reference.phi(ids, k_p, vocab_size))
            phi.append({**entry, "family": "fourier", "phi": values})

    ops = [
        op(rng, *entry)
        for entry in (
            (33, 2, "fourier", 1, ()),
            (40, 2, "fourier", 3, (0, 1, 7)),
            (41, 3, "fourier", 2, (40,)),
            (257, 5, "fourier", 100, (5,)),
        )
    ]
    profiles = [
        Profile(Scheme(), 32000),
        Profile(Scheme(kappa=1.0, n_gram=4, k_p="per-agent", placement="raw"), 257, "00ff" * 16, (0, 2, 5)),
        Profile(Scheme(kappa=0.1, k_p=3), 1 << 24),
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


def make_gumbel() -> dict[str, Any]:
    rng = np.random.default_rng(SEED + 1)
    ids = np.array([0, 1, 2, 31, 32000, 128255, 262143, (1 << 24) - 1, 1 << 24, (1 << 31) - 1, (1 << 32) - 1])
    uniform = []
    for seed in (0, 1, 1 << 32, (1 << 64) - 1, *rng.integers(0, 1 << 64, 3, dtype=np.uint64).tolist()):
        numerators = reference.uniform(ids, np.uint64(seed))
        uniform.append({"seed": f"{seed:016x}", "ids": ids.tolist(), "numerators": numerators.tolist()})
    # Around the ends, changes of the exponent of u or 1 - u, and the jump of t from √2 - 1 to √½ - 1.
    root = round(2**24 / math.sqrt(2))
    edges = [1, 3, 5, root // 2, root, (1 << 23) - 1, (1 << 23) + 1, (1 << 24) - root, (1 << 24) - 3]
    drawn = rng.integers(0, 1 << 24, 12).tolist()
    numerators = np.unique(np.array([x | 1 for x in [*edges, *(x - 2 for x in edges[3:]), *drawn]]))
    numerators = np.append(numerators, (1 << 24) - 1).astype(np.uint32)
    u = numerators.astype(np.float32) * np.float32(2.0**-24)
    noise = {
        "numerators": numerators.tolist(),
        "noise": bits(reference.minus_log(reference.minus_log(u))),
        "score": bits(reference.minus_log(np.float32(1) - u)),
    }
    # Seeds that hold counts, and counts.
    rng = np.random.default_rng(SEED + 3)
    keys, seeds, counts = subkeys(), [], []
    for words in range(1, 16):
        context, subkey = rng.integers(0, 1 << 24, words), keys[words % len(keys)]
        for count in (0, 1, 2 + int(rng.integers(0, 1 << 16)), (1 << 24) - 1, 1 << 24):
            seed = int(reference.context_seed(subkey, context, count))
            entry = {"subkey": subkey.tobytes().hex(), "context": context.tolist(), "count": count}
            seeds.append({**entry, "seed": f"{seed:016x}"})
    for n_gram in (2, 4, 5):
        token_ids = rng.integers(0, 2, 30)
        times = reference.times_before(token_ids, n_gram)
        counts.append({"n_gram": n_gram, "token_ids": token_ids.tolist(), "counts": times.tolist()})
    ops = [
        op(rng, vocab_size, n_gram, "gumbel", 1, unmarked, counts=keys_given)
        for vocab_size, n_gram, unmarked, keys_given in (
            (33, 4, (), [0, 1, 2, 3]),
            (40, 2, (0, 1, 7), [7, 0, 0, 1 << 20]),
            (257, 5, (5,), [1, 1, 0, 40]),
        )
    ]
    profiles = [
        Profile(Scheme(family="gumbel"), 32000),
        Profile(Scheme(family="gumbel", n_gram=8), 257, "00ff" * 16, (0, 2, 5)),
    ]
    return {
        "family": "gumbel",
        "note": "Floats are IEEE bits in hex. Generated by tests/vectors/make.py from iet/reference.py.",
        "uniform": uniform,
        "noise": noise,
        "seed": seeds,
        "counts": counts,
        "ops": ops,
        "profile": [{"profile": p.to_dict(), "digest": p.digest} for p in profiles],
    }


def make_sessions() -> dict[str, Any]:
    rng = np.random.default_rng(SEED + 3)
    derive = []
    for secret in SECRETS:
        for session in SESSIONS:
            derived = derive_session(secret, session)
            entry = {"secret": secret.hex(), "session": session, "session_secret": derived.hex()}
            derive.append({**entry, "subkey": derive_subkey(derived).hex()})
    # Those of the first secret in the first three sessions.
    keys = [derive_subkey(derive_session(SECRETS[0], session)) for session in SESSIONS[:3]]
    table = np.array([np.frombuffer(key, dtype=np.uint8) for key in keys])
    ops = [op(rng, *entry, table) for entry in ((33, 4, "gumbel", 1, ()), (41, 2, "fourier", 3, (5,)))]
    return {
        "note": "Floats are IEEE bits in hex. Generated by tests/vectors/make.py.",
        "derive": derive,
        "sessions": list(SESSIONS[:3]),
        "ops": ops,
    }


FILES = {
    f"scheme_v{SCHEME_VERSION}.json": make,
    f"gumbel_v{SCHEME_VERSION}.json": make_gumbel,
    f"sessions_v{SCHEME_VERSION}.json": make_sessions,
}


def text(content: dict[str, Any]) -> str:
    """Return JSON with a line for every known answer."""
    lines = [
        f"{json.dumps(key)}: "
        + (
            "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
            if isinstance(value, list)
            else json.dumps(value)
        )
        for key, value in content.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for name, make_file in FILES.items():
        (FOLDER / name).write_text(text(make_file()))
