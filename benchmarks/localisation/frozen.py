"""The drawn and written texts of the benchmark as files, the same to the bit for everybody.

    python -m benchmarks.localisation.frozen -o DIR            # and their digests
    python -m benchmarks.localisation.frozen -o DIR --check    # exit 1 unless they are those of this page

A file for each law, as `fourier-2.npz`, and for each cell of written texts, as `written-fourier-T1.0-2.npz`.
The N texts of a file lie behind each other, text i from `starts`[i] to `starts`[i + 1]:

    scores  float32 [T, A], of all T tokens under the keys of A agents
    truth   int64 [T], the agent of a token, -1: nobody
    starts  int64 [N + 1]
    split   [N], "tuning" for texts that nothing is reported of, else "reported"
    text    [N], what was written, and
    ids     int64 [T], its tokens: of written texts alone

Drawn numbers follow from NumPy's PCG64 under seeds that are in `corpora`. Written texts follow from the
weights of the shipped model, which runs in float64 (`benchmarks.writing.exact`), and from torch's generator
on the CPU; they take some ten minutes of one core.
"""

from __future__ import annotations

import argparse
import hashlib
import pathlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.localisation import corpora

TEXTS = 30
"""Texts of a file that are reported, as many as `python -m benchmarks.localisation` reads."""

DIGESTS: dict[str, str] = {
    "fourier-2.npz": "6c3ef4c334c6a845a56d8acbc76940b836f59d83112e33ea20d1f01273179018",
    "fourier-4.npz": "e1acf2fc167c5146d4a6dee181822d3313a1414079c76138e0f04954bbfe6409",
    "fourier-8.npz": "a24cbd59cc46426e2b84584af9b61eac828a70d63bae82d86e8fc883903edec6",
    "green-list-2.npz": "879511c4c33dd84aaa84362bd570dc1ae84baac84d2c08b0628a9175fbdcb9a3",
    "green-list-4.npz": "dedbe2b6db8ab5e2940048bb965d694388b55437f31a8f299e8431ec4f09173c",
    "green-list-8.npz": "ce33fb9319265d4d194cb0d60d2f4a69c048b17af121c39450ccd2af425b1d89",
    "gumbel-2.npz": "a5a418ceac273e14dab863dc9afd36921a5b259134ad645d72344d3e4f7137d6",
    "gumbel-4.npz": "c871f7347d585e5920176781395e7fb081859d6ec6db301f1bd16bda1beba911",
    "gumbel-8.npz": "67c86780cfe1e1271991a173750a3c958d131e43bca0c9e812284fff2aee5c5a",
    "written-fourier-T1.0-2.npz": "23766251fa6df3bf530550436ac93f884d3f4ca5e8a8bde356f7b0794cc22227",
    "written-fourier-T1.0-5.npz": "d53eab18bd6bce09cb35818a578b5066b3b29b6c978402c907732b43c52a6578",
    "written-fourier-T1.0-8.npz": "b3fd4404a0ec27e554995afc0581547741e7e845e3ee1eb121f9e6d31555ae9b",
    "written-gumbel-T1.0-2.npz": "f77be51bbe5a6457953a723dff0c5940cc3cd6d1ce936b97c07516ea2e0863d7",
    "written-gumbel-T1.0-5.npz": "aa979361ef9ab0c468db24c2a7cfad20e9de3ecdd33a30c25c1f13260891e4ae",
    "written-gumbel-T1.0-8.npz": "25a869829293ce1cf00ccf87865aa6127cab5b64d2d73bf46a1089ea5825be99",
    "written-gumbel-T0.5-5.npz": "3fca76f0b48032b6f9aecf3fa055453bd780f33f6a5aa15ff8e158016802b0ed",
}
"""File → SHA-256 of its arrays in the order of their names (`digest`)."""

Arrays = dict[str, np.ndarray]


def files(drawn_only: bool = False, work: pathlib.Path | None = None) -> Iterator[tuple[str, Arrays]]:
    """Yield names and arrays of the files; `work` keeps the model's turns."""
    for law in corpora.DRAWN:
        yield f"{law.family.replace(' ', '-')}-{law.agents}.npz", arrays(*corpora.of_law(law, TEXTS))
    for family, temperature, agents in () if drawn_only else corpora.WRITTEN:
        cell = corpora.written((family, temperature, agents), TEXTS, work)
        yield f"written-{family}-T{temperature}-{agents}.npz", arrays(*cell)


def arrays(corpus: corpora.Corpus) -> Arrays:
    """Return the arrays of a corpus's file."""
    every = [*corpus.tuning, *corpus.texts]
    found = {
        "scores": np.concatenate([text.scores for text in every]),
        "truth": np.concatenate([text.truth for text in every]).astype(np.int64),
        "starts": np.cumsum([0, *(len(text.truth) for text in every)]).astype(np.int64),
        "split": np.repeat(["tuning", "reported"], [len(corpus.tuning), len(corpus.texts)]),
    }
    written = [(text.text, text.ids) for text in every if text.text is not None and text.ids is not None]
    if written:
        found["text"] = np.array([text for text, _ in written])
        found["ids"] = np.concatenate([ids for _, ids in written]).astype(np.int64)
    return found


def digest(of: Arrays) -> str:
    """Return the digest of what a file holds, whatever it is compressed with.

    Of each array its name and its bytes as they lie in memory, little-endian; of strings their UTF-8, with
    a NUL between.
    """
    hashed = hashlib.sha256()
    for name, array in sorted(of.items()):
        hashed.update(name.encode())
        strings = array.dtype.kind == "U"
        hashed.update(
            "\0".join(array).encode() if strings else array.astype(array.dtype.newbyteorder("<")).tobytes()
        )
    return hashed.hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.localisation.frozen", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="folder of the files")
    parser.add_argument("--check", action="store_true", help="exit 1 if a digest is another")
    parser.add_argument("--drawn-only", action="store_true", help="no texts that the model writes: seconds")
    parser.add_argument("--work", type=pathlib.Path, help="folder that keeps what the shipped model wrote")
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    other = []
    for name, made in files(given.drawn_only, given.work):
        np.savez_compressed(given.output / name, **made)  # type: ignore[arg-type]
        print(digest(made), name, flush=True)
        if DIGESTS[name] != digest(made):
            other.append(name)
    if other:
        print(f"another digest than that of the page: {', '.join(other)}", file=sys.stderr)
    return int(given.check and bool(other))


if __name__ == "__main__":
    raise SystemExit(main())
