"""Segmentation baselines: Recursive, Semantic-BoW and TextTiling (§ Baselines).

**They get S, the true number of turns**, and cut the text, in characters, into S parts, or fewer if the text
has too few places to cut. Segments are mapped to turns with the truth (see `reading`), and there is no
EdgeSim, as in the paper. They do not get the ends of turns, but Recursive and TextTiling prefer to cut at a
joiner such as a blank line.

The paper names LangChain for all three, `unit_mode = assistant_response` and seed 123. Here they read the
whole text, since units would give them the ends of the turns. Ties are broken by position; nothing is
drawn.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.paper import needed
from benchmarks.paper.baselines.reading import match_segments, read_tokens
from benchmarks.paper.conversations.logs import Log
from benchmarks.paper.reading.readers import Reading
from iet.marks.tokenizer import Tokenizer

WINDOW_WORDS = 30
"""Number of words on either side of a place that Semantic-BoW compares."""
SEQUENCE_WORDS = 20
"""Words of a token-sequence of TextTiling: nltk's w."""
BLOCK_SEQUENCES = 10
"""Most token-sequences of a block of TextTiling: nltk's k."""

_SENTENCE_START = re.compile(r"(?<=[.?!])\s+")
_PARAGRAPH = re.compile(r"\n[ \t\r\f\v]*\n\s*")

Segmenter = Callable[[str, int], list[int]]


def recursive(text: str, segments: int) -> list[int]:
    r"""Cut a text by LangChain's `RecursiveCharacterTextSplitter` into S chunks.

    Source: langchain-text-splitters, with its own separators "\n\n", "\n", " ", "", lengths in characters and
    no overlap. Difference: it takes a chunk size, not a number of chunks. So the largest chunk size with at
    least S chunks is searched by bisection, and then the two neighbours with the shortest total length are
    merged until S chunks remain. Whitespace at the ends of chunks stays, so that the chunks tile the text.
    """
    splitting = needed("langchain_text_splitters")

    def lengths(chunk_size: int) -> list[int]:
        splitter = splitting.RecursiveCharacterTextSplitter(
            chunk_size=chunk_size, chunk_overlap=0, strip_whitespace=False
        )
        return [len(chunk) for chunk in splitter.split_text(text)]

    # A chunk size of 1 gives one chunk per character; bisection finds the size with fewer than S chunks.
    fitting, low, high = lengths(1), 1, len(text)
    while low < high:
        size = (low + high + 1) // 2
        chunks = lengths(size)
        if len(chunks) >= segments:
            low, fitting = size, chunks
        else:
            high = size - 1
    while len(fitting) > segments:
        pairs = [a + b for a, b in itertools.pairwise(fitting)]
        shortest = pairs.index(min(pairs))
        fitting[shortest : shortest + 2] = [pairs[shortest]]
    return [0, *itertools.accumulate(fitting)]


def semantic_bow(text: str, segments: int) -> list[int]:
    """Cut a text at the lowest bag-of-words cosines between neighbouring windows of W words.

        d(j) = 1 - cos(c(j - W .. j - 1), c(j .. j + W - 1)),    c = counts of lower-case words

    The S - 1 places with the highest d are the bounds, at least W/2 words apart if possible. Places are the
    starts of sentences and paragraphs; if there are too few, of all words.

    Source: § Baselines ("drops in bag-of-words similarity between neighboring windows"), after LangChain's
    `SemanticChunker` (langchain_experimental), whose rule for sentences is used. Differences: bags of words
    for embeddings; windows of words that do not overlap, for sentences joined with their neighbours; exactly
    S - 1 bounds, for an interpolated percentile of the distances; the least distance between bounds.
    """
    window = WINDOW_WORDS
    matches = list(re.finditer(r"\w+", text))
    words = [match.group().lower() for match in matches]
    starts = [match.start() for match in matches]
    sentences = {bisect.bisect_left(starts, match.end()) for match in _SENTENCE_START.finditer(text)}
    paragraphs = {bisect.bisect_left(starts, match.end()) for match in _PARAGRAPH.finditer(text)}
    positions = sorted((sentences | paragraphs) - {0, len(words)})
    if len(positions) < segments - 1:
        positions = list(range(1, len(words)))
    distance = {j: 1 - _cosine(words[max(0, j - window) : j], words[j : j + window]) for j in positions}
    ranked = sorted(positions, key=lambda j: (-distance[j], j))
    chosen = _apart(ranked, segments - 1, window // 2)
    return _bounds(text, [_gap_end(text, matches[j - 1].end(), starts[j]) for j in chosen])


def text_tiling(text: str, segments: int) -> list[int]:
    """Cut a text at the S - 1 deepest gaps of TextTiling.

    Source: nltk's `TextTilingTokenizer` (Hearst 1997). Differences: the S - 1 gaps of the greatest depth are
    taken, not those above a cutoff; each moves to the nearest free paragraph break within half a mean
    segment; many segments in a short text lower w = 20, blocks of k = 10 sequences and the distance of 4
    gaps between bounds. Stop words are scikit-learn's English ones, because nltk's are a download.
    """
    # Characters that nltk keeps, to map its words to positions in the text.
    indices = [i for i, c in enumerate(text) if c.isascii() and (c.isalpha() or c in "-' \n\t")]
    letters = "".join(text[i] for i in indices)
    words = [indices[match.start()] for match in re.finditer(r"\w+", letters)]
    w = max(1, min(SEQUENCE_WORDS, len(words) // (4 * segments)))
    k = max(1, min(BLOCK_SEQUENCES, round(len(words) / segments / w / 2)))
    depth, score = _depths(letters, w, k)
    ranked = sorted(range(len(depth)), key=lambda gap: (-depth[gap], score[gap], gap))
    gaps = _apart(ranked, segments - 1, min(4, k))
    reach = len(text) / segments / 2
    breaks = [match.start() for match in _PARAGRAPH.finditer(text) if 0 < match.start() < len(text)]
    positions: list[int] = []
    for gap in gaps:
        position = words[(gap + 1) * w]
        free = [at for at in breaks if at not in positions and abs(at - position) <= reach]
        positions.append(min(free, key=lambda at: abs(at - position)) if free else position)
    return _bounds(text, positions)


def read(segmenter: Segmenter, logs: Sequence[Log], tokenizer: Tokenizer, seed: int = 123) -> list[Reading]:
    """Attribute logs by segments that are matched to turns."""
    readings = []
    for log in logs:
        tokens = read_tokens(log, tokenizer)
        # A turn without the end of a token cannot be found.
        segments = tokens.labels(segmenter(log.text, len(np.unique(tokens.turns))))
        labels = match_segments(segments, tokens.turns, tokens.agents)
        readings.append(Reading(labels, None))
    return readings


def _depths(letters: str, w: int, k: int) -> tuple[list[float], list[float]]:
    """Return depth and smoothed score of every gap between token-sequences; none for a short text."""
    stopwords = needed("sklearn.feature_extraction.text").ENGLISH_STOP_WORDS
    tiler = needed("nltk.tokenize.texttiling").TextTilingTokenizer(
        w=w, k=k, stopwords=stopwords, demo_mode=True
    )
    # nltk requires a paragraph break at the 100th character or later; block comparison does not use it.
    try:
        _, smooth, depth, _ = tiler.tokenize(letters.rstrip() + "\n\n")
    except ValueError:
        return [], []
    return list(map(float, depth)), list(map(float, smooth))


def _apart(ranked: Sequence[int], number: int, distance: int) -> list[int]:
    """Return the first `number` places at least `distance` apart, then the first of the others."""
    chosen: list[int] = []
    for position in ranked:
        if len(chosen) < number and all(
            abs(position - chosen_position) >= distance for chosen_position in chosen
        ):
            chosen.append(position)
    remaining = [position for position in ranked if position not in set(chosen)]
    return chosen + remaining[: number - len(chosen)]


def _cosine(words_before: Sequence[str], words_after: Sequence[str]) -> float:
    a, b = collections.Counter(words_before), collections.Counter(words_after)
    norm = math.sqrt(sum(c * c for c in a.values()) * sum(c * c for c in b.values()))
    return sum(count * b[word] for word, count in a.items()) / norm if norm else 0.0


def _gap_end(text: str, end: int, start: int) -> int:
    """Return the end of a segment between two words: after punctuation, before whitespace."""
    blank = re.search(r"\s", text[end:start])
    return end + blank.start() if blank else start


def _bounds(text: str, positions: Sequence[int]) -> list[int]:
    return [0, *sorted({position for position in positions if 0 < position < len(text)}), len(text)]
