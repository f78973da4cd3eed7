"""What a report says in words: its answer, how sure it is and why, what was assumed, what it cannot tell."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from iet.marks.foreign.waterfall import WaterfallScheme
from iet.marks.keys import AnyProfile
from iet.report.lines import harmless
from iet.report.segments import Segment

if TYPE_CHECKING:
    from iet.report.model import Report


def headline(report: Report) -> list[str]:
    """Return what was read, and how."""
    count = len(report.segments)
    size = f"{len(report.text):,} characters, " if report.text is not None else ""
    separator = " · " if len(report.profiles) == 1 else "\n  "
    choice = f"{report.coverage:.0%} attributed at level {report.level:g}"
    left_out = f", {report.left_out:,} left out" if report.left_out else ""
    published = f", {report.published:,} published before" if report.published else ""
    several = "" if len(report.profiles) == 1 else f" of {len(report.profiles)} profiles"
    return [
        f"{size}{report.tokens:,} tokens{several}"
        f" ({report.scored:,} scored, {report.repeated:,} repeats{published}{left_out})"
        f" · {count} segment{'' if count == 1 else 's'}"
        f" · {choice if report.allow_unattributed else 'forced choice'}",
        f"decoder {report.decoder} · {len(report.agents)} agents"
        + "".join(f"{separator}{_profile(profile)}" for profile in report.profiles),
        *_model_line(report),
        *_session_line(report),
    ]


def _profile(profile: AnyProfile) -> str:
    return f"profile {profile.id}: {profile.scheme}, V {profile.vocab_size}"


def _model_line(report: Report) -> list[str]:
    if report.model is None:
        return []
    name, temperature, share = (report.model[field] for field in ("name", "temperature", "share"))
    fitted = " (fitted)" if report.model["temperature_fitted"] else ""
    return [f"read with {harmless(name)} at temperature {temperature:g}{fitted}, weight {share:.0%}"]


def _session_line(report: Report) -> list[str]:
    return [] if report.sessions is None else [f"sessions: {sessions(report)}"]


def sessions(report: Report) -> str:
    """Say in which sessions agents are found."""
    assert report.sessions is not None
    found = [
        f"{harmless(each.agent)} in"
        f" {'none of them' if each.session is None else harmless(each.session)} (p {p_value(each.log_p)})"
        for each in report.sessions.found[:20]
    ]
    more = len(report.sessions.found) - len(found)
    listed = " · ".join([*found, *([f"and {more:,} more"] if more > 0 else [])])
    return f"{listed or 'no agent is found'}; {report.sessions.read:,} read"


def verdict(report: Report) -> str:
    """Return the answer, in one line."""
    if not report.segments:
        return "Nothing in this text could be read"
    if not report.allow_unattributed:
        return f"Every token given to one of {len(report.agents)} agents (forced choice)"
    if not report.found:
        quoted = (report.published or 0) / max(1, (report.published or 0) + report.scored)
        known = f"; {quoted:.0%} of it was published before" if quoted >= 0.5 else ""
        return f"No registered agent was found in this text{known}"
    count = len(report.found)
    some = ", ".join(report.found[:6]) + (f" and {count - 6} more" if count > 6 else "")
    return f"{some} wrote in this text; {report.coverage:.0%} of it is attributed"


def evidence_lines(report: Report) -> list[str]:
    """Return who is found in the text, and how surely."""
    law = f"p-values from {_null(report)}, corrected for the number of keys"
    agents = ", ".join(f"{name} (p {p_value(report.evidence[name])})" for name in report.found)
    who = agents or f"none; lowest p {p_value(report.log_p)}"
    return [f"agents found in the text at level {report.level:g}: {who} · {law}"]


def summary(report: Report) -> str:
    """Return what was read, and when a passage has a name, in words that need no explanation."""
    count = len(report.segments)
    size = f"{report.tokens:,} tokens" if report.text is None else f"{len(report.text):,} characters"
    passages = f"{count:,} passage{'' if count == 1 else 's'} in {size}."
    if not count:
        return f"{size} were read."
    if not report.allow_unattributed:
        return f"{passages} Somebody had to be named for each of them, however weak the evidence."
    if any(segment.error is not None for segment in report.segments):
        return (
            f"{passages} A passage has a name only if the chance that this agent wrote none of it is at most"
            f" {_allowed(report.level)}."
        )
    return f"{passages} Of the passages that have a name at most {_allowed(report.level)} has a wrong one."


def promise(report: Report) -> str:
    """Return what the report rests on, in words that need no explanation."""
    keys = f"The text was read under the keys of {len(report.evidence):,} agents"
    if not report.allow_unattributed:
        return f"{keys}, and somebody had to be named."
    return (
        f"{keys}. Among texts in which none of them had a part, at most {_allowed(report.level)} has somebody"
        " found in it. That holds as long as nobody else has these keys."
    )


def agents_legend(report: Report) -> str:
    """Return what the page's table of agents says."""
    return (
        "Found: the agent's mark is in this text. Chance without it: how often a text in which it had no part"
        f" looks like this; it is found at {_allowed(report.level)} or less."
    )


def _null(report: Report) -> str:
    return f"ranks among {report.decoys} decoy keys" if report.decoys else "the null law of scores"


def legend(report: Report) -> list[str]:
    """Return what the columns of the segments say, as far as they are filled."""
    if not report.segments:
        return []
    lines = ["p alone: p-value of this segment by itself, whatever the rest of the text says about its agent"]
    if any(segment.error is not None for segment in report.segments):
        lines[:0] = [
            "share: how much of its words is the agent's, with a probability of 90% · error: probability, at"
            " most, that it wrote none of them"
        ]
    if report.allow_unattributed:
        rule = "error is at most {0}" if len(lines) > 1 else "p alone passes at a false-discovery rate of {0}"
        found = "its agent is found in the text and its " if len(lines) > 1 else "its "
        lines.append(f"a segment is attributed if {found}{rule.format(f'{report.level:g}')}")
    if names_tokens(report):
        lines.append(
            f"of it only words are named whose own posterior says so at level {report.level:g}: on average at"
            " most that share of what is named is another's"
        )
    return lines


def transition_lines(report: Report) -> list[str]:
    """Return the transition graph in words: edges with counts and confidence, topology, μ."""
    t = report.transitions
    if not t.observed:
        return ["transitions: none"]
    passages = sorted(t.passages.items())
    edges = ", ".join(f"{a} → {b} ×{len(p)} ({max(p):.2f})" for (a, b), p in passages)
    names = " = ".join(t.topology.matches) or t.topology.name
    return [f"transitions: {edges}", f"as a graph: {names} · μ = {t.bitmask:#x}"]


def limits(report: Report) -> list[str]:
    """Return what this report in particular is unsure of, and what no report can tell."""
    lines = []
    if report.seam_share is not None:
        lines.append(
            f"beside the boundaries, for {report.seam_share:.2%} of the characters, it is uncertain where the"
            " writer's tokens ended"
        )
    if report.invisible:
        lines.append(f"{report.invisible} invisible characters were left out before tokenizing")
    if report.scored < 30:
        lines.append(f"only {report.scored} scored tokens: too short to attribute at any useful level")
    if report.segments:
        lines.append(
            "an agent wrote in its passages, not every word of them: short unmarked or copied passages inside"
            " are read with their surroundings; a verbatim quotation reads as the quoted agent"
        )
    lines += [
        "Short turns: below some dozens of tokens a mark is too weak to be read; such turns are read with"
        " their surroundings or stay unattributed.",
        "Edits: every changed word hides the mark of the words right after it. What somebody else has"
        " rewritten is that somebody's, or nobody's.",
        "Predictable text: where the next word was certain (code, lists, quotations, greedy decoding) no mark"
        " fits in.",
        "Unattributed does not mean written by a person: it means that no key of this registry explains it.",
        "What is said of chances holds for agents who have only their own keys. It is no proof against"
        " someone who has"
        " another's key"
        + (
            ", or who has read its text: some hundred words suffice to write more in its name, unless the"
            " audit reads an index of what was published."
            if report.published is None
            else ", or who has read text of it that is not in the index of what was published."
        ),
    ]
    if any(isinstance(profile.scheme, WaterfallScheme) for profile in report.profiles):
        lines.append(
            "The ids of this scheme are no secrets: whoever knows them can write as any of the agents."
        )
    return lines


_RESTORED = {
    "json": "the escapes of JSON",
    "html": "HTML's character references",
    "fence": "the fence round it",
    "quoted": "marks of quotation",
    "indented": "indentation",
    "wrapped": "the ends of wrapped lines",
    "typography": "typographic characters",
}


def assumptions(report: Report) -> list[tuple[str, str]]:
    """Return what the report rests on, by name: profiles, keys, decoder, level, tokens, text, model."""
    rows = []
    for profile in report.profiles:
        rows += [
            (f"profile {profile.id}", f"{profile.scheme}, V {profile.vocab_size:,}"),
            ("profile digest", profile.digest),
            ("tokenizer digest", profile.tokenizer_digest or "none: token ids only"),
        ]
    rows += [
        ("registry digest", report.registry_digest),
        ("keys of", f"{len(report.evidence):,} agents were read"),
        ("decoder", f"{report.decoder} {report.options or ''}".strip()),
        ("level", f"{report.level:g}" if report.allow_unattributed else "none: forced choice"),
        (
            "p-values",
            f"{_null(report)}; corrected for the number of keys (Holm), p alone also for the choice of"
            " segment",
        ),
        ("tokens", f"{report.tokens:,}, {report.scored:,} scored, {report.repeated:,} repeats"),
    ]
    if report.published is not None:
        rows.append(("published before", published(report)))
    if report.sessions is not None:
        rows.append(("sessions", f"{sessions(report)}, digest {report.sessions.digest}"))
    if report.text is not None:
        rows.append(("text, SHA-256", hashlib.sha256(report.text.encode()).hexdigest()))
    if report.restored is not None:
        undone = ", ".join(_RESTORED[step] for step in report.restored)
        read = f"as before it was copied, without {undone}" if undone else "as given"
        rows.append(("read", f"{read}: the surest of several ways, for which p-values are corrected"))
    if report.model is not None:
        rows.append(("read with model", f"{report.model['name']}, digest {report.model['digest']}"))
    return rows


def published(report: Report) -> str:
    """Say how much of the text agents had published before."""
    count, among = report.published or 0, (report.published or 0) + report.scored
    share = f" ({count / among:.0%})" if among else ""
    return (
        f"{count:,} of {among:,} tokens that carry a score{share} stand in the index of published text behind"
        " the same words: quoted, or written again by anybody, so they are no evidence for anyone"
    )


def how_sure(report: Report, segment: Segment) -> list[str]:
    """Say in plain words how sure it is that the segment's agent wrote it."""
    guess = segment.best_guess
    if segment.left_out:
        return []
    if segment.quoted:
        return [f"Nobody is named: it is quoted. {_published(segment)}"]
    if guess is None:
        return ["Nobody is named: no agent who is found in this text explains it."]
    if not report.allow_unattributed:
        sure = "" if segment.posterior is None else f"; its chance among them is {segment.posterior:.0%}"
        return [f"How sure: that was not tested, one of the agents had to be named{sure}."]
    if segment.agent is None:
        if not is_likely(segment):
            return ["Nobody is named: no key of this registry explains this better than chance does."]
        return [f"Nobody is named: perhaps it was {guess}, but the evidence does not suffice."]
    if segment.error is None:
        chance = odds(math.exp(segment.log_p))
        return [f"How sure: text without {guess}'s mark looks as telling as this with a chance of {chance}."]
    word = "very sure" if segment.error < 1e-4 else "sure" if segment.error <= 0.01 else "fairly sure"
    lines = [
        f"How sure: {word} that {guess} wrote in here. The chance that it wrote none of this is"
        f" {odds(segment.error)}, if what is assumed below holds."
    ]
    if segment.share_interval is not None:
        lines[0] += f" {share_words(segment).capitalize()} of these words are {guess}'s."
    if segment.log_p > math.log(report.level):
        lines.append(
            "By itself this passage is too weak to show it: the chance of as much without the mark is"
            f" {odds(math.exp(segment.log_p))}. It is read with what the rest of the text says about {guess}."
        )
    if segment.published is not None and segment.published >= 0.2:
        lines.append(
            f"{segment.published:.0%} of its words were published before, and count for nobody: they may be"
            " quoted. The others show it."
        )
    return lines


def reasons(report: Report, segment: Segment) -> list[str]:
    """Say why the segment has its agent, or none, and what would change that."""
    guess, level = segment.best_guess, report.level
    if segment.left_out:
        return []
    if segment.quoted:
        return [
            "What would change that: an audit of the published text itself, or one that is told of which"
            " published texts this one is made."
        ]
    if guess is None:
        return [
            "Why: the key that comes nearest is that of an agent whose mark the text as a whole does not"
            " show. Some key always comes nearest, of any text.",
            "What would change that: more text of the same agent, or the registry that it was marked with.",
        ]
    if not report.allow_unattributed:
        return [
            f"Why: forced choice. {guess} explains it best, however weakly.",
            "What would change that: another agent whose key fits a little better.",
        ]
    found, error = report.evidence.get(guess, 0.0), segment.error
    if segment.agent is not None and error is not None:
        return [
            f"Why: the text as a whole shows {guess}'s mark (a text without it looks so with a chance of"
            f" {odds(math.exp(found))}), and this chance of error is at most the {_allowed(level)} that was"
            " asked for.",
            "What would change that: it would have no name if a chance of"
            f" {odds(max(error, math.exp(found)))} were too much, if it were cut much shorter, or if many of"
            " its words were replaced.",
        ]
    if segment.agent is not None:
        return [
            f"Why: that chance is small enough: of all passages with a name, at most {_allowed(level)} is to"
            " have a wrong one.",
            "What would change that: a smaller share of errors to be asked for, a shorter passage or many"
            " replaced words.",
        ]
    if error is not None and found > math.log(level):
        why = (
            f"the text as a whole does not show {guess}'s mark: a text without it looks so with a chance of"
            f" {odds(math.exp(found))}, and at most {_allowed(level)} was asked for"
        )
    elif error is None:
        why = f"that a text without its mark looks so has a chance of {odds(math.exp(segment.log_p))}"
    else:
        why = (
            f"the chance that it wrote none of this is {odds(error)}, and at most {_allowed(level)} was asked"
            " for"
        )
    return [
        f"Why: {guess} explains it best, but {why}.",
        "What would change that: more text of the same agent, a larger chance of error to be allowed, or the"
        " key of an agent who is not in this registry.",
    ]


def _published(segment: Segment) -> str:
    return (
        f"{segment.published:.0%} of its words were published before, by an agent, behind the same words:"
        " whoever has read them could have put them here, so they are evidence for nobody."
    )


def names_tokens(report: Report) -> bool:
    """Tell whether only words that are sure by themselves are named, see `Auditor(attributed=)`."""
    return report.options.get("attributed") == "tokens"


def share_words(segment: Segment) -> str:
    """Say how much of a segment's words is its agent's: "about 84 to 93%"; nothing where that is unknown."""
    if segment.share_interval is None:
        return ""
    low, high = (f"{share:.0%}" for share in segment.share_interval)
    if low == high:
        return "nearly all" if low == "100%" else f"about {low}"
    return f"about {low[:-1]} to {high}"


def is_likely(segment: Segment) -> bool:
    """Tell whether the best guess is worth a name: one as likely as not by chance is not."""
    return segment.log_p < math.log(0.5) or (segment.error is not None and segment.error < 0.5)


def odds(probability: float) -> str:
    """Say a small probability as people do."""
    if probability < 1e-6:
        return "less than 1 in 1,000,000"
    if probability > 0.1:
        return f"{probability:.0%}"
    return f"about 1 in {float(f'{1 / probability:.2g}'):,.0f}"


def _allowed(level: float) -> str:
    """Say a level as people do: somebody chose it, so it is no round figure."""
    return f"{level:.0%}" if level > 0.1 else f"1 in {float(f'{1 / level:.4g}'):,.10g}"


def small(probability: float) -> str:
    """Return a probability that was a float32: of less than a millionth it says no more."""
    return "< 1e-6" if probability < 1e-6 else p_value(math.log(probability))


def p_value(log_p: float) -> str:
    """Return a p-value as people read it, from its natural log, however small."""
    if log_p > math.log(1e-3):
        return f"{math.exp(log_p):.3g}"
    exponent = math.floor(log_p / math.log(10))
    mantissa = f"{math.exp(log_p - exponent * math.log(10)):.1f}"
    return f"1.0e{exponent + 1}" if mantissa == "10.0" else f"{mantissa}e{exponent}"
