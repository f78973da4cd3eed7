"""Checks that several engines share, and switches in the environment."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

from iet.errors import InputError, ShapeError, shown
from iet.marks.registry import Registry
from iet.marks.scheme import Scheme

MAX_TEMPERATURE = 1e6
"""Of a request that is marked."""

MIN_TEMPERATURE = 0.01
"""Of sampling that a mark can change at all. The random variates -log(-log u) of two tokens differ by at most
20, so tokens whose logits are more than 20·T apart (0.2 here) never change places, and those more than 5·T
apart hardly ever. vLLM raises lower temperatures to this one."""

MIN_TOP_P = 0.01
"""The same of top-p: less keeps a second token only if the likeliest is less likely than that. The most of
min-p is 1 less this."""


@dataclasses.dataclass(frozen=True)
class Floor:
    """The least freedom that sampling must leave a text that is marked.

    Below the defaults the likeliest token is nearly certain, so the text would carry hardly a mark. An
    operator may ask for more, or for less down to `MIN_TEMPERATURE` and `MIN_TOP_P`: the variables
    IET_MIN_TEMPERATURE and IET_MIN_TOP_P.

    Attributes:
        temperature: the lowest temperature.
        top_p: the lowest top-p, at most 1; `min_p` is at most 1 - top_p. For family "gumbel" alone.
    """

    temperature: float = 0.1
    top_p: float = 0.1

    def check_shifted(self, temperature: float) -> None:
        """Raise an InputError if a shift of the logits hardly matters at this temperature, above 0."""
        if not temperature >= self.temperature:
            raise InputError(
                f"temperature: got {temperature:g}, expected 0 or at least {self.temperature:g}, for a text"
                " that is marked: in between, the shift κ·T is too small to change a token"
            )

    def check(self, temperature: float, top_k: float, top_p: float, min_p: float) -> None:
        """Raise an InputError if sampling with these values, which are numbers, leaves "gumbel" less."""
        wrong = ""
        if top_k == 1:
            wrong = "top_k: got 1 (or temperature 0), expected more, or all tokens"
        elif not temperature >= self.temperature:
            wrong = f"temperature: got {temperature:g}, expected at least {self.temperature:g}"
        elif not top_p >= self.top_p:
            wrong = f"top_p: got {top_p:g}, expected at least {self.top_p:g}"
        elif not min_p + self.top_p <= 1 + 1e-9:  # 0.8 + 0.2 may be above 1
            wrong = f"min_p: got {min_p:g}, expected at most {1 - self.top_p:g}"
        if wrong:
            raise InputError(
                f'{wrong}, for a text that is marked: family "gumbel" marks by the way in which tokens are'
                " drawn, and needs tokens to draw among"
            )

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Floor:
        """Return the floor of a server: the variables IET_MIN_TEMPERATURE and IET_MIN_TOP_P.

        Raises:
            InputError: a variable is not a number, or is out of range.
        """
        default, values = cls(), list[float]()
        ranges = {"temperature": (MIN_TEMPERATURE, MAX_TEMPERATURE), "top_p": (MIN_TOP_P, 1.0)}
        for name, (low, high) in ranges.items():
            variable = f"IET_MIN_{name.upper()}"
            text = environment.get(variable) or str(getattr(default, name))
            try:
                value = float(text)
            except ValueError:
                value = 0.0
            if not low <= value <= high:
                raise InputError(f"{variable}: got {shown(text)}, expected a number from {low:g} to {high:g}")
            values.append(value)
        return cls(*values)


def check_registry(registry: object) -> None:
    """Raise an InputError unless this is a registry."""
    if not isinstance(registry, Registry):
        raise InputError(
            f"registry: got {type(registry).__name__}, expected iet.Registry (iet.Registry.load reads a file)"
        )


def check_model_vocabulary(size: int, vocab_size: int) -> None:
    """Raise a ShapeError if a model has fewer logits than the profile has ids, V."""
    if size < vocab_size:
        raise ShapeError(
            "the model's vocabulary", got=size, expected=f"at least {vocab_size}, V of the profile"
        )


def check_vllm_chooses_nothing(watermark_config: object, logprobs_mode: object) -> None:
    """Raise an InputError if a configuration of vLLM does not support family "gumbel".

    Args:
        watermark_config: of vLLM's own watermark, or None.
        logprobs_mode: vLLM's option, or None for its default.
    """
    if watermark_config is not None:
        raise InputError(
            'watermark_config: got vLLM\'s own watermark and family "gumbel": both choose the token; expected'
            " one of them"
        )
    if logprobs_mode is not None and str(logprobs_mode).startswith("processed"):
        raise InputError(
            f'logprobs_mode: got {logprobs_mode}, expected "raw_logprobs" or "raw_logits": family "gumbel"'
            " leaves one token of a row, and log-probabilities would be of that"
        )


def check_vllm_drafts(rejection_sample_method: object) -> None:
    """Raise an InputError if vLLM accepts drafts at random, whatever the mark; None: its default."""
    if rejection_sample_method == "synthetic":
        raise InputError(
            "rejection_sample_method: got 'synthetic', expected 'standard' or 'block': it accepts drafts at a"
            " given rate, and those have no mark"
        )


def names_of_rows(agents: str | Sequence[str | None]) -> Sequence[str | None]:
    """Return the agents of the rows of a prompt batch; a single name counts as one row.

    Raises:
        InputError: `agents` is neither a name nor a sequence of names.
    """
    if not isinstance(agents, (str, Sequence)) or isinstance(agents, bytes) or not len(agents):
        raise InputError(
            f"agents: got {agents!r:.80}, expected one name (or None) per row of the prompt batch, or a name"
        )
    return [agents] if isinstance(agents, str) else agents


def rows_of_a_prompt(rows: int, agents: int, same_prompt: Callable[[int], bool] | None = None) -> int:
    """Return the number of rows for each agent: beams and `num_return_sequences` repeat each prompt.

    Args:
        rows: number of rows of the batch.
        agents: number of agents.
        same_prompt: returns whether the rows of each group of this size have one prompt.

    Raises:
        ShapeError: `rows` is no multiple of `agents`, or rows of one agent have different prompts.
    """
    repeats, remaining = divmod(rows, agents)
    if remaining or repeats == 0 or (same_prompt is not None and not same_prompt(repeats)):
        raise ShapeError(
            "agents", got=f"{agents} agents for {rows} rows", expected="one agent per row of the prompt batch"
        )
    return repeats


def before_temperature(scheme: Scheme, temperature: object) -> float:
    """Return the factor of κ in a processor that runs before the sampler's temperature.

    κ is in units of final logits, so the factor is the temperature that the sampler will divide by. With
    placement "raw", as in the paper, it is 1.

    Args:
        scheme: of the profile.
        temperature: of the sampler, a finite number above 0; None only with placement "raw".

    Raises:
        InputError: the temperature is missing or out of range.
    """
    if scheme.placement == "raw":
        return 1.0
    if temperature is None:
        raise InputError(
            "temperature: got None, expected the sampler's: this processor runs before it, κ counts after"
        )
    if (
        isinstance(temperature, bool)
        or not isinstance(temperature, (int, float))
        or not 0 < temperature < float("inf")
    ):
        raise InputError(f"temperature: got {temperature!r}, expected a finite number above 0")
    return float(temperature)


def switch(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether an environment variable is 1; 0, empty and unset mean no.

    Args:
        name: of the variable.
        environment: the variables.

    Raises:
        InputError: it has another value.
    """
    value = environment.get(name) or "0"
    if value not in ("0", "1"):
        raise InputError(f"{name}: got {value!r:.80}, expected 0 or 1")
    return value == "1"
