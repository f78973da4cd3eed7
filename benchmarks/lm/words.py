"""List the words that `iet demo` writes with: those that the speeches of the training text use often.

Run `python -m benchmarks.lm.words --data PATH -o iet/demo/words.txt`.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import re
import sys
from collections.abc import Iterable

from benchmarks.lm.corpus import load_documents, split
from benchmarks.recording import exit_code

LEAST = 15
"""How often a word has to occur; below stand slips of the pen and names of a single speech."""

LEAST_CAPITALISED = 250
"""How often one has to that always has a capital letter: so many are names of people."""


def common_words(texts: Iterable[str]) -> list[str]:
    """Return the words, sorted: in small letters, unless a word has a capital letter wherever it occurs."""
    counts = collections.Counter(
        word for text in texts for word in re.findall(r"(?<![\w'.-])[A-Za-z]+(?:'[a-z]+)?(?![\w'-])", text)
    )
    small = {word for word, count in counts.items() if word.islower() and count >= LEAST}
    capital = {
        word
        for word, count in counts.items()
        if word.istitle() and count >= LEAST_CAPITALISED and counts[word.lower()] * 20 < count
    }
    return sorted(
        word for word in small | capital if (len(word) > 1 or word in ("a", "I")) and not word.endswith("'s")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder that holds corpus/")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    train, _ = split(load_documents(arguments.data, ["speeches"]))
    words = common_words(document.text for document in train)
    arguments.output.write_text("\n".join(words) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))
