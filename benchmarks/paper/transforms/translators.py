"""What translates sentences: models of transformers, and Apertium, which needs no model."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from typing import Any

from iet.errors import BackendUnavailable, InputError

APERTIUM = "apertium"
"""Stands in place of a model for `Apertium`."""

_CODES = {"en": "eng", "es": "spa", "fr": "fra", "zh": "zho"}


def translator(pair: str, model: str) -> Translator | Apertium:
    """Return what translates a pair, such as "en_es": a model by folder or id, or `APERTIUM`."""
    return Apertium(*pair.split("_")) if model == APERTIUM else Translator(model)


class Apertium:
    """Translate sentences with Apertium, a translator by rules; `apt-get install apertium apertium-eng-spa`.

    A sentence is a paragraph of its own, so that none has to do with its neighbours. Words that it does not
    know stay as they are.

    Args:
        source, target: languages, by ISO 639-1.

    Raises:
        BackendUnavailable: it is not installed, or not for these languages.
    """

    def __init__(self, source: str, target: str) -> None:
        self._mode = f"{_CODES.get(source, source)}-{_CODES.get(target, target)}"
        if shutil.which("apertium") is None:
            raise BackendUnavailable("apertium is not installed; apt-get install apertium apertium-eng-spa")
        listed = subprocess.run(["apertium", "-l"], capture_output=True, text=True, check=True).stdout.split()
        if self._mode not in listed:
            raise BackendUnavailable(
                f"apertium: got {self._mode}, installed are {', '.join(listed) or 'none'}"
            )

    def __call__(self, sentences: list[str]) -> list[str]:
        """Return the translation of each sentence."""
        if not sentences:
            return []
        given = "".join(" ".join(sentence.split()) + _BREAK for sentence in sentences)
        line = ["apertium", "-u", self._mode]
        said = subprocess.run(line, input=given, capture_output=True, text=True, encoding="utf-8", check=True)
        found = said.stdout.removesuffix(_BREAK).split(_BREAK)
        if len(found) != len(sentences):
            raise InputError(f"apertium: got {len(found)} sentences back, expected {len(sentences)}")
        return found


_BREAK = "\n\n"


class Translator:
    """Translate sentences with a sequence-to-sequence model, greedily or with beams, never sampling.

    Equal sentences are translated once; sentences of similar length share a batch. A sentence that is longer
    than the model reads, or that the model has no answer to, comes back empty: half a translation would look
    like a whole one. What comes back does not depend on the batch, up to ties in floating point. A model may
    want its `languages` (NLLB: "eng_Latn", "fra_Latn").
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        languages: tuple[str, str] | None = None,
        beams: int = 1,
        batch: int = 16,
    ) -> None:
        for name, value in (("beams", beams), ("batch", batch)):
            if value < 1:
                raise InputError(f"{name}: got {value!r}, expected at least 1")
        try:
            import torch
            import transformers

            # Marian, T5 and NLLB want sentencepiece, which transformers does not install.
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
            self._model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(model, dtype=torch.float32)
        except (ImportError, OSError, ValueError) as error:
            raise BackendUnavailable(
                f"translation model {os.fspath(model)!r}: {error}; give the folder or id of a "
                "sequence-to-sequence model, and pip install transformers torch sentencepiece"
            ) from None
        self._model.eval()
        self._options: dict[str, Any] = {"do_sample": False, "num_beams": beams}
        if languages is not None:
            self._tokenizer.src_lang, target = languages
            first = self._tokenizer.convert_tokens_to_ids(target)
            if first is None or first == self._tokenizer.unk_token_id:
                raise InputError(f"languages: got {target!r}, expected a code of the tokenizer")
            self._options["forced_bos_token_id"] = first
        self._batch = batch
        config = self._model.config
        self._longest = getattr(config, "max_position_embeddings", None) or 512

    def __call__(self, sentences: list[str]) -> list[str]:
        """Return the translation of each sentence, empty where there is none."""
        import torch

        different = list(dict.fromkeys(sentences))
        rows = {s: self._tokenizer(s)["input_ids"] for s in different}
        short = sorted((s for s in different if len(rows[s]) <= self._longest), key=lambda s: len(rows[s]))
        found = dict.fromkeys(different, "")
        # How long an answer may get must not depend on what else is in the batch.
        for room, group in itertools.groupby(short, key=lambda s: self._room(len(rows[s]))):
            alike = list(group)
            for first in range(0, len(alike), self._batch):
                part = alike[first : first + self._batch]
                inputs = self._tokenizer(part, return_tensors="pt", padding=True)
                inputs.pop("token_type_ids", None)
                with torch.inference_mode():
                    made = self._model.generate(**inputs, **self._options, max_length=room)
                answers = self._tokenizer.batch_decode(made, skip_special_tokens=True)
                found.update(zip(part, answers, strict=True))
        return [found[sentence] for sentence in sentences]

    def _room(self, tokens: int) -> int:
        """Return the most tokens of an answer: a power of two above twice the sentence."""
        return min(self._longest, 1 << (2 * tokens + 15).bit_length())
