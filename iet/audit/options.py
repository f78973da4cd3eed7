"""`AuditOptions`: the one definition of every option of an audit.

`Auditor`'s keyword arguments, the flags of the command line, the fields of the HTTP service and the reference
page docs/reference/options.md are made from the fields of this class.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from iet.decoding import DECODERS, options_of
from iet.errors import InputError, check_number, shown
from iet.marks.sessions import checked_sessions

MAX_DECOYS = 1_000_000
"""Maximum number of decoys; time and memory grow with them."""

MAX_DECOYS_HTTP, MAX_SESSIONS_HTTP = 10_000, 1_000
"""Maximum in a request to the service, in which time and memory grow with them, too."""


@dataclasses.dataclass(frozen=True)
class Option:
    """The explanation of one field of `AuditOptions`, and the interfaces besides Python that can set it.

    Attributes:
        help: one sentence, for every interface.
        details: what else a user of Python needs.
        flag: on the command line; None: it has none.
        metavar: of the flag's value.
        lines_of_file: whether the flag's value is a file whose lines are the option's values.
        http: whether a client of the service may set it. Options that name files belong to the operator.
        http_maximum: largest value, or number of values, that a client may set. None: as in Python.
    """

    help: str
    details: str = ""
    flag: str | None = None
    metavar: str | None = None
    lines_of_file: bool = False
    http: bool = False
    http_maximum: int | None = None


def _option(default: Any, help: str, details: str = "", **where: Any) -> Any:
    return dataclasses.field(default=default, metadata={"option": Option(help, details, **where)})


@dataclasses.dataclass(frozen=True)
class AuditOptions:
    """The options of an `Auditor`, checked when they are made: all that needs no registry.

    Every field has an `Option` in its metadata; docs/reference/options.md shows them all.

    Raises:
        InputError: an option is out of range, or two options exclude each other.
    """

    decoder: Literal["posterior", "cusum", "window"] = _option(
        "posterior",
        "this library's decoder (posterior), the paper's (cusum), or the paper's windowed score (window)",
        flag="--decoder",
        http=True,
    )
    level: float = _option(
        0.01,
        "false-positive rate on unmarked text, and highest error of an attributed segment",
        "Between 0 and 1. With decoder `posterior`, a segment is attributed if its agent is found in the text"
        " and `Segment.error`, the posterior probability that the agent wrote none of it, is at most the"
        " level. The other decoders have no posterior: they attribute segments at this false-discovery rate.",
        flag="--level",
        http=True,
    )
    allow_unattributed: bool = _option(
        True,
        "forced choice, as in the paper: every token gets an agent",
        "`allow_unattributed=False`. By default text that no key explains is left unattributed.",
        flag="--forced",
        http=True,
    )
    profile: str | None = _option(
        None,
        "id of the only profile to read (default: all that have agents)",
        "Text is read in the tokens of each profile. Only decoder `posterior` reads several.",
        flag="--profile",
        http=True,
    )
    tokenizer: Any = _option(
        None,
        "the profile's tokenizer, if the registry's note of it does not lead there",
        "A path or an object; `{profile id: path or object}` if there are several profiles. Its digest must"
        " be the profile's.",
    )
    model: Any = _option(
        None,
        "causal language model to read with: smollm2, folder or id on the Hub; best the text's own",
        "Or a model of transformers, or an `iet.LanguageModel`, which has options. Decoder `posterior` then"
        " weighs every token by its probability under the model, so that predictable text counts for little."
        " With another tokenizer than the profile's it reads family `gumbel` only. p-values rest on scores"
        " alone. One profile only.",
        flag="--model",
    )
    decoys: int = _option(
        0,
        "number of decoy keys; p-values are then ranks among them (default: 0, p-values of the null law)",
        f"At most {MAX_DECOYS:,}. Ranks assume nothing about the law of scores. Corrected for K keys they are"
        " no lower than about K / (1 + decoys), so decoys must be about K / level.",
        flag="--decoys",
        http=True,
        http_maximum=MAX_DECOYS_HTTP,
    )
    known_agents: Sequence[str] | None = _option(
        None,
        "an agent who may have written the text; may be repeated (default: all of the registry)",
        "The keys of other agents are not read, and p-values are not corrected for them.",
        flag="--known",
        metavar="NAME",
        http=True,
    )
    attributed: Literal["segment", "tokens"] = _option(
        "segment",
        "name whole segments, or only the tokens that are certain at the level (decoder posterior only)",
        "An agent need not have written every word of its segment (`Segment.share`). With `tokens` the"
        " segment is cut into named and open pieces; of the named tokens, on average at most `level` are"
        " another agent's. Hand-overs stay as they are. Not for forced choice.",
        flag="--attributed",
        http=True,
    )
    published: Any = _option(
        None,
        "index of published text (iet index): a token whose context and id are in it is no evidence",
        "A path or an `iet.PublishedIndex`. Anyone who has read the published text could have written it"
        " again (`Report.published`).",
        flag="--published",
        metavar="OUT.idx",
    )
    as_copied: bool = _option(
        False,
        "also read the text with what copying does undone (wrapped lines, quotation, escapes, typography)",
        "The report is of the reading with the lowest `evidence` in sum (`Report.restored`); p-values are"
        " corrected for the number of readings, at most four. Characters are those of the text as given. For"
        " one whole text at a time.",
        flag="--as-copied",
        http=True,
    )
    sessions: Sequence[str] | None = _option(
        None,
        "ids of sessions whose keys agents may have marked with (a file of ids, one a line)",
        "Session keys (`Registry.session`) are read in addition to the agents' own. `Report.sessions` names"
        " the sessions of the agents that are found, at `level` for all agents and sessions together.",
        flag="--sessions",
        metavar="FILE",
        lines_of_file=True,
        http=True,
        http_maximum=MAX_SESSIONS_HTTP,
    )
    decoder_options: Mapping[str, Any] = _option(
        None,
        "an option of the decoder's own; may be repeated",
        "See `PosteriorOptions`, `CusumOptions` and `WindowOptions`. `Auditor` also takes them as keyword"
        " arguments.",
        flag="--decoder-option",
        metavar="NAME=VALUE",
        http=True,
    )

    @classmethod
    def of(cls, decoder: str | AuditOptions, changes: Mapping[str, Any]) -> AuditOptions:
        """Return options with `changes`; names that are no field are the decoder's own options."""
        names = {field.name for field in dataclasses.fields(cls)}
        fields = {name: value for name, value in changes.items() if name in names}
        own = {name: value for name, value in changes.items() if name not in names}
        if isinstance(decoder, AuditOptions):
            fields.setdefault("decoder_options", decoder.decoder_options)
        else:
            fields["decoder"] = decoder
        if own:
            fields["decoder_options"] = {**fields.get("decoder_options", {}), **own}
        return dataclasses.replace(decoder, **fields) if isinstance(decoder, AuditOptions) else cls(**fields)

    def __post_init__(self) -> None:
        object.__setattr__(self, "decoder_options", dict(self.decoder_options or {}))
        if not isinstance(self.decoder, str) or self.decoder not in DECODERS:
            raise InputError(f"decoder: got {self.decoder!r}, expected one of {sorted(DECODERS)}")
        if not isinstance(self.level, (int, float, np.floating)) or not 0 < self.level < 1:
            raise InputError(f"level: got {self.level!r}, expected a number between 0 and 1")
        for name in ("allow_unattributed", "as_copied"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)):
                raise InputError(f"{name}: got {shown(value)}, expected True or False")
        check_number("decoys", self.decoys, 0, MAX_DECOYS)
        if self.attributed not in ("segment", "tokens"):
            raise InputError(f"attributed: got {self.attributed!r}, expected 'segment' or 'tokens'")
        posterior = DECODERS[self.decoder].has_posterior
        if self.attributed == "tokens" and not posterior:
            raise InputError(
                f"attributed: got 'tokens' and decoder {self.decoder!r}, expected 'posterior', which knows"
                " how sure a token is"
            )
        if self.attributed == "tokens" and not self.allow_unattributed:
            raise InputError(
                "attributed: got 'tokens' and allow_unattributed=False, expected 'segment': a forced choice"
                " leaves no token open"
            )
        if self.model is not None and not posterior:
            raise InputError(
                f"model: got decoder {self.decoder!r}, expected 'posterior', which reads with it"
            )
        if "weights" in self.decoder_options:
            raise InputError(
                "weights: got some, expected none: they belong to one text (iet.decoding.decode)"
            )
        if "level" in self.decoder_options:
            raise InputError("decoder_options: got 'level', which is an option of the audit itself")
        for name, value in (
            ("level", float(self.level)),
            ("allow_unattributed", bool(self.allow_unattributed)),
            ("decoys", int(self.decoys)),
            ("known_agents", _names(self.known_agents)),
            ("as_copied", bool(self.as_copied)),
            ("sessions", None if self.sessions is None else checked_sessions(self.sessions)),
        ):
            object.__setattr__(self, name, value)
        self.decoding  # noqa: B018 - refuses what is out of range

    @functools.cached_property
    def decoding(self) -> Any:
        """The decoder's own options, as its dataclass.

        Decoders without a null state have a level of their own: it is the report's.
        """
        given = dict(self.decoder_options)
        if "level" in DECODERS[self.decoder].defaults:
            given["level"] = min(self.level, 0.5)
        return options_of(self.decoder, given)


def _names(names: Iterable[str] | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str):
        raise InputError(f"known_agents: got {names!r}, expected a list of names")
    try:
        chosen = tuple(dict.fromkeys(names))
    except TypeError:
        raise InputError(f"known_agents: got {names!r:.80}, expected a list of names") from None
    if not chosen:
        raise InputError("known_agents: got none, expected at least one name")
    return chosen


@functools.cache
def options() -> Mapping[str, tuple[Option, Any, Any]]:
    """Return {name: (`Option`, type, default)} of every field of `AuditOptions`."""
    kinds = typing.get_type_hints(AuditOptions)
    return {
        field.name: (field.metadata["option"], kinds[field.name], field.default)
        for field in dataclasses.fields(AuditOptions)
    }


def _arguments() -> str:
    """Return the section "Args" of the class's docstring."""
    texts = [(name, f"{option.help}. {option.details}".strip()) for name, (option, _, _) in options().items()]
    fill = functools.partial(textwrap.fill, width=100, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "".join(fill(f"{name}: {text}") + "\n" for name, text in texts)


AuditOptions.__doc__ = f"{inspect.cleandoc(AuditOptions.__doc__ or '')}\n\nArgs:\n{_arguments()}"


def reference() -> str:
    """Return the page docs/reference/options.md."""
    lines = [
        "# Options of an audit",
        "",
        "Generated from `iet.AuditOptions` by `python -m iet.audit.options > docs/reference/options.md`.",
        "",
        "| option | default | command line | HTTP |",
        "| --- | --- | --- | --- |",
    ]
    details = []
    for name, (option, _, default) in options().items():
        http = ("yes" if option.http_maximum is None else f"at most {option.http_maximum:,}") * option.http
        flag = "" if option.flag is None else f"`{option.flag}`"
        lines.append(f"| `{name}` | `{default!r}` | {flag} | {http} |")
        sentence = f"{option.help[0].upper()}{option.help[1:]}."
        details += ["", f"**`{name}`**. {sentence} {option.details}".rstrip()]
    return "\n".join([*lines, *details]) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
