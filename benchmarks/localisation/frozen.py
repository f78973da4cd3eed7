"""The drawn texts of the benchmark as files, the same to the bit for everybody.

    python -m benchmarks.localisation.frozen -o DIR            # 4 MB, and their digests
    python -m benchmarks.localisation.frozen -o DIR --check    # exit 1 unless they are those of this page

A file for each law, `fourier-2.npz` and so on, with `scores` float32 [N, T, A] of N texts, T tokens and A
agents, their `truth` int64 [N, T] (-1: nobody), and `split` [N], "tuning" for those that nothing is reported
of. Every number follows from NumPy's PCG64 under seeds that are in `corpora`.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import sys

import numpy as np

from benchmarks.localisation import corpora

TEXTS = 30
"""Texts of a law that are reported, as many as `python -m benchmarks.localisation` reads."""

DIGESTS: dict[str, str] = {
    "fourier-2.npz": "fb0ce3855dc197a6772eb630f03bd63db250286039940eb34b3bedb2de1a9c2f",
    "fourier-4.npz": "5399170e2c6a5b3f5360971c79e093e43a68b6e2acb779c28d67c1a689aff6e4",
    "fourier-8.npz": "1e910361c87bb694605cb8925bb15156e16cb0396f956a97247d4dacb9f66cee",
    "green-list-2.npz": "93e36387b84717b716f54ed856295102d93f0b29a588da7dee6ef8dd782ba13d",
    "green-list-4.npz": "23854c14fe192caedceb9961e66a35c139a4af881ea271ab43c9958dc7171265",
    "green-list-8.npz": "0cb71eed4ac564a464067b759e9d3af8654d0fca377550b4b6ff244df0e846f6",
    "gumbel-2.npz": "dc793e52615a3857b6429055ac5f99e7446e7a5cdd111d5241f6b0d43d652832",
    "gumbel-4.npz": "164026c338574f28655bbd5d51a5f31ffa401197e841906302009d05c0a4c681",
    "gumbel-8.npz": "142fb7ad06116be57c7ed59f3fac087112385fd0253c55962630b7dafcbab6f3",
}
"""File → SHA-256 of its arrays: scores, then truth, as they lie in memory, little-endian."""


def arrays(law: corpora.Drawn, texts: int = TEXTS) -> dict[str, np.ndarray]:
    """Return the arrays of a law's file."""
    (corpus,) = corpora.of_law(law, texts)
    every = [*corpus.tuning, *corpus.texts]
    split = ["tuning"] * len(corpus.tuning) + ["reported"] * len(corpus.texts)
    return {
        "scores": np.stack([text.scores for text in every]),
        "truth": np.stack([text.truth for text in every]),
        "split": np.array(split),
    }


def name_of(law: corpora.Drawn) -> str:
    """Return the name of a law's file."""
    return f"{law.family.replace(' ', '-')}-{law.agents}.npz"


def digest(of: dict[str, np.ndarray]) -> str:
    """Return the digest of what a file holds, whatever it is compressed with."""
    hashed = hashlib.sha256(of["scores"].astype("<f4").tobytes())
    hashed.update(of["truth"].astype("<i8").tobytes())
    return hashed.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.localisation.frozen", description=__doc__)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="folder of the files")
    parser.add_argument("--check", action="store_true", help="exit 1 if a digest is another")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    other = []
    for law in corpora.DRAWN:
        name, made = name_of(law), arrays(law)
        np.savez_compressed(given.output / name, **made)  # type: ignore[arg-type]
        print(digest(made), name)
        if DIGESTS[name] != digest(made):
            other.append(name)
    if other:
        print(f"another digest than that of the page: {', '.join(other)}", file=sys.stderr)
    return int(given.check and bool(other))


if __name__ == "__main__":
    raise SystemExit(main())
