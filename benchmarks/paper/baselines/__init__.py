"""The paper's baselines that read plain text (§ Baselines); KGW and Unigram are in `marks`.

Each is a function `read(logs, tokenizer, seed, **needs) -> list[Reading]` with one entry for each log. A
baseline sees the text and what its module states (number of turns, ends of turns as unit bounds). The truth
is used for that, and to map unnamed labels to agents.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from benchmarks.paper.baselines import hmm, llm, segmenters
from benchmarks.paper.reading.readers import Reading

__all__ = ["BASELINES", "Baseline"]


@dataclasses.dataclass(frozen=True)
class Baseline:
    name: str  # as the paper prints it
    read: Callable[..., list[Reading]]
    source: str
    needs: tuple[str, ...] = ()  # keyword arguments that `read` requires


_PROMPTS = "the prompts of § LLM Baseline Prompts, verbatim; the paper's model was "
_ENDPOINT = ("endpoint", "tasks", "cache")

BASELINES: dict[str, Baseline] = {
    "chatgpt": Baseline("ChatGPT", llm.read, _PROMPTS + "gpt-5-mini", _ENDPOINT),
    "deepseek": Baseline("DeepSeek", llm.read, _PROMPTS + "DeepSeek-v3.1", _ENDPOINT),
    "hmm": Baseline(
        "HMM / Viterbi",
        hmm.read,
        "Rabiner 1989, Viterbi 1967; scikit-learn's TF-IDF of the agents' turns in other records",
    ),
    "recursive": Baseline(
        "Recursive",
        functools.partial(segmenters.read, segmenters.recursive),
        "RecursiveCharacterTextSplitter of langchain-text-splitters",
    ),
    "semantic-bow": Baseline(
        "Semantic-BoW",
        functools.partial(segmenters.read, segmenters.semantic_bow),
        "after SemanticChunker of langchain_experimental, with bags of words",
    ),
    "texttiling": Baseline(
        "TextTiling",
        functools.partial(segmenters.read, segmenters.text_tiling),
        "Hearst 1997; TextTilingTokenizer of nltk",
    ),
}
"""Key -> baseline; the docstring of the reader states the differences from the source."""
