"""Segmentation methods: Recursive, Semantic-BoW and TextTiling (§ Baselines).

All are **adapted to the number of segments: they are told S, the true number of turns**, and cut the text, in
characters, into S parts, or fewer if the text holds too few places to cut. Who speaks they never say:
segments are mapped to turns with the truth's help (see `reading`), and EdgeSim is N/A as in the paper. Where
turns end they are not told, but a joiner such as a blank line is a place where Recursive and TextTiling like
to cut.

The paper names LangChain for all three, `unit_mode = assistant_response` and seed 123, and says no more. Here
they read the whole text, not its units: units would give them the ends of the turns, which are the answer.
Nothing is drawn here: ties are broken by position, so the seed changes nothing.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.paper import needed
from benchmarks.paper.baselines.reading import Found, match_segments, ordered_segments, read_tokens
from benchmarks.paper.conversations.logs import Log
from iet.errors import InputError
from iet.marks.tokenizer import Tokenizer

WINDOW_WORDS = 30
"""Words on either side of a place whose similarity Semantic-BoW compares."""
SEQUENCE_WORDS = 20
"""Words of TextTiling's token-sequences: nltk's w."""
BLOCK_SEQUENCES = 10
"""Token-sequences of TextTiling's blocks, at most: nltk's k."""
MOST_CHARACTERS = 1_000_000
"""Longest text that nltk's TextTiling takes."""

_SENTENCE_START = re.compile(r"(?<=[.?!])\s+")
_PARAGRAPH = re.compile(r"\n[ \t\r\f\v]*\n\s*")

Segmenter = Callable[[str, int], list[int]]


def recursive(text: str, segments: int) -> list[int]:
    r"""Cut a text by LangChain's `RecursiveCharacterTextSplitter` into S chunks.

    Source: langchain-text-splitters, with its own separators "\n\n", "\n", " ", "", lengths in characters and
    no overlap. Difference: it takes a chunk size, not a number of chunks. So the largest chunk size that
    gives at least S chunks is searched by bisection, and while there are more than S, the two neighbours that
    are shortest together are merged. Blanks at the ends of chunks are kept, so that the chunks tile the text.
    """
    _check(text, segments)
    splitting = needed("langchain_text_splitters")

    def lengths(chunk_size: int) -> list[int]:
        splitter = splitting.RecursiveCharacterTextSplitter(
            chunk_size=chunk_size, chunk_overlap=0, strip_whitespace=False
        )
        return [len(chunk) for chunk in splitter.split_text(text)]

    # A chunk size of 1 gives one chunk per character. Bisection looks for where the count falls below S.
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
    """Cut a text where the bag-of-words cosine between neighbouring windows of W words is lowest.

        d(j) = 1 - cos(c(j - W .. j - 1), c(j .. j + W - 1)),    c = counts of lower-case words

    The S - 1 places with the highest d are the bounds, no two less than W/2 words apart as long as there are
    others. Places are the starts of sentences and of paragraphs; if they do not suffice, of all words.

    Source: § Baselines ("drops in bag-of-words similarity between neighboring windows"), after LangChain's
    `SemanticChunker` (langchain_experimental), whose rule for sentences is used. Differences: bags of words
    for embeddings; windows of words that do not overlap, for sentences joined with their neighbours; exactly
    S - 1 bounds, for an interpolated percentile of the distances; the least distance between bounds.
    """
    _check(text, segments)
    window = WINDOW_WORDS
    matches = list(re.finditer(r"\w+", text))
    words = [match.group().lower() for match in matches]
    # A bound stands after the last word of a segment and the punctuation that goes with it.
    starts = [match.start() for match in matches]
    sentences = {bisect.bisect_left(starts, match.end()) for match in _SENTENCE_START.finditer(text)}
    paragraphs = {bisect.bisect_left(starts, match.end()) for match in _PARAGRAPH.finditer(text)}
    places = sorted((sentences | paragraphs) - {0, len(words)})
    if len(places) < segments - 1:
        places = list(range(1, len(words)))
    distance = {j: 1 - _cosine(words[max(0, j - window) : j], words[j : j + window]) for j in places}
    ranked = sorted(places, key=lambda j: (-distance[j], j))
    chosen = _apart(ranked, segments - 1, window // 2)
    return _bounds(text, [_gap_end(text, matches[j - 1].end(), starts[j]) for j in chosen])


def text_tiling(text: str, segments: int) -> list[int]:
    """Cut a text at the S - 1 deepest gaps of TextTiling.

    Source: nltk's `TextTilingTokenizer` (Hearst 1997): token-sequences of w words, block comparison, smoothed
    scores, depth scores; only letters a to z make words. Differences: the S - 1 gaps of the greatest depth
    are taken, for those above a cutoff (gaps without depth by their score). Each is moved to the nearest
    paragraph break that is free, as in nltk, if one is nearer than half a mean segment. w = 20, blocks of k =
    10 sequences, and bounds at least 4 gaps apart are nltk's; with many segments in a short text all three
    are lowered, to four gaps per segment, blocks of half a mean segment, and bounds a block apart (less if
    nothing else is left). Stop words are scikit-learn's English ones, passed on, because nltk's are a
    download.
    """
    _check(text, segments)
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"text: got {len(text)} characters, expected at most {MOST_CHARACTERS}")
    # What nltk keeps of a text, so that its words can be found again in ours.
    kept = [i for i, c in enumerate(text) if c.isascii() and (c.isalpha() or c in "-' \n\t")]
    letters = "".join(text[i] for i in kept)
    words = [kept[match.start()] for match in re.finditer(r"\w+", letters)]
    w = max(1, min(SEQUENCE_WORDS, len(words) // (4 * segments)))
    k = max(1, min(BLOCK_SEQUENCES, round(len(words) / segments / w / 2)))
    depth, score = _depths(letters, w, k)
    ranked = sorted(range(len(depth)), key=lambda gap: (-depth[gap], score[gap], gap))
    gaps = _apart(ranked, segments - 1, min(4, k))
    reach = len(text) / segments / 2
    breaks = [match.start() for match in _PARAGRAPH.finditer(text) if 0 < match.start() < len(text)]
    places: list[int] = []
    for gap in gaps:
        place = words[(gap + 1) * w]
        free = [each for each in breaks if each not in places and abs(each - place) <= reach]
        places.append(min(free, key=lambda each: abs(each - place)) if free else place)
    return _bounds(text, places)


def _read(
    segmenter: Segmenter, in_order: bool, logs: Sequence[Log], tokenizer: Tokenizer, seed: int = 123
) -> list[Found]:
    named, found = ordered_segments if in_order else match_segments, []
    for log in logs:
        tokens = read_tokens(log, tokenizer)
        # A turn that no token ends in is no segment that could be found.
        segments = tokens.labels(segmenter(log.text, len(np.unique(tokens.turns))))
        found.append(Found(named(segments, tokens.turns, tokens.agents), None, matched=not in_order))
    return found


_SEGMENTERS = (recursive, semantic_bow, text_tiling)
read_recursive, read_semantic_bow, read_text_tiling = (
    functools.partial(_read, segmenter, False) for segmenter in _SEGMENTERS
)
recursive_in_order, semantic_bow_in_order, text_tiling_in_order = (
    functools.partial(_read, segmenter, True) for segmenter in _SEGMENTERS
)
"""Readers of `BASELINES`: segments matched to turns, and named in the order of the turns."""


def _depths(letters: str, w: int, k: int) -> tuple[list[float], list[float]]:
    """Depth and smoothed score of every gap between token-sequences, by nltk; none in too short a text."""
    stopwords = needed("sklearn.feature_extraction.text").ENGLISH_STOP_WORDS
    tiler = needed("nltk.tokenize.texttiling").TextTilingTokenizer(
        w=w, k=k, stopwords=stopwords, demo_mode=True
    )
    # nltk refuses a text without a paragraph break at its 100th character or later. This one is behind all
    # words, and what is counted per paragraph is not used by block comparison.
    try:
        _, smooth, depth, _ = tiler.tokenize(letters.rstrip() + "\n\n")
    except ValueError:
        return [], []
    return list(map(float, depth)), list(map(float, smooth))


def _apart(ranked: Sequence[int], number: int, distance: int) -> list[int]:
    """Return the first `number` that keep their distance, then, if too few do, the first of the rest."""
    chosen: list[int] = []
    for place in ranked:
        if len(chosen) < number and all(abs(place - other) >= distance for other in chosen):
            chosen.append(place)
    rest = [place for place in ranked if place not in set(chosen)]
    return chosen + rest[: number - len(chosen)]


def _cosine(left: Sequence[str], right: Sequence[str]) -> float:
    a, b = collections.Counter(left), collections.Counter(right)
    norm = math.sqrt(sum(c * c for c in a.values()) * sum(c * c for c in b.values()))
    return sum(count * b[word] for word, count in a.items()) / norm if norm else 0.0


def _gap_end(text: str, end: int, start: int) -> int:
    """Return where a segment ends between two words: after the first one's punctuation, before the blanks."""
    blank = re.search(r"\s", text[end:start])
    return end + blank.start() if blank else start


def _bounds(text: str, places: Sequence[int]) -> list[int]:
    return [0, *sorted({place for place in places if 0 < place < len(text)}), len(text)]


def _check(text: str, segments: int) -> None:
    if not text:
        raise InputError("text: got an empty one, expected some characters")
    if segments < 1:
        raise InputError(f"segments: got {segments}, expected at least 1")
