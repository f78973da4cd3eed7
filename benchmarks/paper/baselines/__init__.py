"""The paper's baselines that read plain text (§ Baselines; KGW and Unigram are in `marks`).

Each is a reader `read(logs, tokenizer, seed, **needs) -> list[Found]`: one entry per log, with an agent for
every token of `tokenizer.encode(log.text)`. It sees the text and what its module says it is told beside it
(number of agents or of turns, ends of turns as unit boundaries); the truth is used for that, and to map
labels without names to agents, and for nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from benchmarks.paper.baselines import hmm, llm, segmenters
from benchmarks.paper.baselines.reading import Found

__all__ = ["BASELINES", "Baseline", "Found"]


@dataclasses.dataclass(frozen=True)
class Baseline:
    name: str  # as printed there, or with what is ours behind it
    read: Callable[..., list[Found]]  # the reader
    source: str  # where the method is from
    edges: bool  # whether it has an EdgeSim; if not, the paper prints N/A
    needs: tuple[str, ...] = ()  # what `read` must be given by keyword


_PROMPTS = "the prompts of § LLM Baseline Prompts, verbatim"
_IN_ORDER = "the segments of {}, the s-th named after the s-th turn's speaker"
_ASKED = ("endpoint", "tasks", "cache")

BASELINES: dict[str, Baseline] = {
    "chatgpt": Baseline(
        "ChatGPT", llm.read, _PROMPTS + "; the paper's was gpt-5-mini", edges=False, needs=_ASKED
    ),
    "deepseek": Baseline(
        "DeepSeek", llm.read, _PROMPTS + "; the paper's was DeepSeek-v3.1", edges=False, needs=_ASKED
    ),
    "bedrock": Baseline("Bedrock", llm.read, _PROMPTS + "; not in the paper", edges=False, needs=_ASKED),
    "hmm": Baseline(
        "HMM / Viterbi",
        hmm.read,
        "Rabiner 1989, Viterbi 1967; scikit-learn's TF-IDF of the agents' turns in other records",
        edges=True,
    ),
    "hmm-own": Baseline(
        "HMM / Viterbi, of the log itself",
        hmm.read_own,
        "the same, of the agents' other turns in the log that is read",
        edges=True,
    ),
    "recursive": Baseline(
        "Recursive",
        segmenters.read_recursive,
        "RecursiveCharacterTextSplitter of langchain-text-splitters",
        edges=False,
    ),
    "semantic-bow": Baseline(
        "Semantic-BoW",
        segmenters.read_semantic_bow,
        "after SemanticChunker of langchain_experimental, with bags of words",
        edges=False,
    ),
    "texttiling": Baseline(
        "TextTiling", segmenters.read_text_tiling, "Hearst 1997; TextTilingTokenizer of nltk", edges=False
    ),
    "recursive-in-order": Baseline(
        "Recursive, in order", segmenters.recursive_in_order, _IN_ORDER.format("Recursive"), edges=False
    ),
    "semantic-bow-in-order": Baseline(
        "Semantic-BoW, in order",
        segmenters.semantic_bow_in_order,
        _IN_ORDER.format("Semantic-BoW"),
        edges=False,
    ),
    "texttiling-in-order": Baseline(
        "TextTiling, in order", segmenters.text_tiling_in_order, _IN_ORDER.format("TextTiling"), edges=False
    ),
}
"""Each with its source; what differs from it is in the reader's docstring."""
