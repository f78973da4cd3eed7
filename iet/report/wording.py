"""Sentences and figures about a report, for every form of it: the answer, its certainty, and its limits."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from iet.marks.foreign.waterfall import WaterfallScheme
from iet.native.pairs import number_pairs, repeats
from iet.report.lines import harmless
from iet.report.segments import Segment

if TYPE_CHECKING:
    from iet.report.model import Report

MIN_TOKENS = 30
"""Number of scored tokens below which a text is called too short."""

COPIED_SHARE = 0.25
"""Share of a text's words that stand earlier in it from which on a report says what that means."""

MAX_SESSIONS = 20
"""Maximum number of findings in sessions that are listed."""


def verdict(report: Report) -> str:
    """Return the answer, in one line."""
    if not report.segments:
        return "Nothing in this text could be read"
    if not report.allow_unattributed:
        return f"Every token given to one of {len(report.agents)} agents (forced choice)"
    if not report.found:
        quoted = (report.published or 0) / max(1, (report.published or 0) + report.scored)
        origin = f"; {quoted:.0%} of it was published before" if quoted >= 0.5 else ""
        return f"No registered agent was found in this text{origin}"
    more = len(report.found) - 6
    names = ", ".join(report.found[:6]) + (f" and {more} more" if more > 0 else "")
    return f"{names} wrote in this text; {report.coverage:.0%} of it is attributed"


def headline(report: Report) -> list[str]:
    """Return how much was read, and the decoder, keys and model."""
    count, several = len(report.segments), len(report.profiles) > 1
    size = f"{len(report.text):,} characters, " if report.text is not None else ""
    choice = f"{report.coverage:.0%} attributed at level {report.level:g}"
    left_out = f", {report.left_out:,} left out" if report.left_out else ""
    published = f", {report.published:,} published before" if report.published else ""
    profiles = [f"profile {p.id}: {p.scheme}, V {p.vocab_size}" for p in report.profiles]
    lines = [
        f"{size}{report.tokens:,} tokens{f' of {len(profiles)} profiles' if several else ''}"
        f" ({report.scored:,} scored, {report.repeated:,} repeats{published}{left_out})"
        f" · {count} segment{'' if count == 1 else 's'}"
        f" · {choice if report.allow_unattributed else 'forced choice'}",
        ("\n  " if several else " · ").join(
            [f"decoder {report.decoder} · {len(report.agents)} agents", *profiles]
        ),
    ]
    if report.model is not None:
        name, temperature, share = (report.model[field] for field in ("name", "temperature", "share"))
        fitted = " (fitted)" if report.model["temperature_fitted"] else ""
        lines.append(f"read with {harmless(name)} at temperature {temperature:g}{fitted}, weight {share:.0%}")
    if report.sessions is not None:
        lines.append(f"sessions: {sessions(report)}")
    return lines


def sessions(report: Report) -> str:
    """Return the agents that were found in sessions, with their sessions."""
    assert report.sessions is not None
    names = []
    for finding in report.sessions.found[:MAX_SESSIONS]:
        session = "none of them" if finding.session is None else harmless(finding.session)
        names.append(f"{harmless(finding.agent)} in {session} (p {p_value(finding.log_p)})")
    more = len(report.sessions.found) - len(names)
    listed = " · ".join([*names, *([f"and {more:,} more"] if more > 0 else [])])
    return f"{listed or 'no agent is found'}; {report.sessions.read:,} read"


def evidence_line(report: Report) -> str:
    """Return the agents that were found in the text, with their p-values."""
    names = ", ".join(f"{name} (p {p_value(report.evidence[name])})" for name in report.found)
    return (
        f"agents found in the text at level {report.level:g}:"
        f" {names or f'none; lowest p {p_value(report.log_p)}'}"
        f" · p-values from {_null_model(report)}, corrected for the number of keys"
    )


def _null_model(report: Report) -> str:
    return f"ranks among {report.decoys} decoy keys" if report.decoys else "the null law of scores"


def summary(report: Report) -> str:
    """Return how much was read and which passages have a name, without terms of the method."""
    count, level = len(report.segments), _level(report.level)
    size = f"{report.tokens:,} tokens" if report.text is None else f"{len(report.text):,} characters"
    if not count:
        return f"{size} were read."
    passages = f"{count:,} passage{'' if count == 1 else 's'} in {size}."
    if not report.allow_unattributed:
        return f"{passages} Each is assigned to the most likely agent, however weak the evidence."
    if any(segment.error is not None for segment in report.segments):
        return (
            f"{passages} A passage has a name only if the chance that this agent wrote none of it is at most"
            f" {level}."
        )
    return f"{passages} At most {level} of the passages with a name has a wrong one."


def promise(report: Report) -> str:
    """Return the false-positive rate and its condition, without terms of the method."""
    keys = f"The text was read under the keys of {len(report.evidence):,} agents"
    if not report.allow_unattributed:
        return f"{keys}, and each passage had to be assigned to one of them."
    return (
        f"{keys}. Of texts that contain no mark of theirs, at most {_level(report.level)} is reported to"
        " contain one. This holds as long as only the agents have these keys."
    )


def agents_legend(report: Report) -> str:
    """Return what the columns of the page's table of agents mean."""
    return (
        "Found: the agent's mark is in this text. Chance without it: how often a text without the mark shows"
        f" as much evidence. An agent is found if this is at most {_level(report.level)}."
    )


def legend(report: Report) -> list[str]:
    """Return what the filled columns of the table of segments mean, and when a segment is attributed."""
    if not report.segments:
        return []
    level = f"{report.level:g}"
    has_errors = any(segment.error is not None for segment in report.segments)
    lines = ["p alone: p-value of the segment by itself, without the evidence in the rest of the text"]
    if has_errors:
        lines[:0] = [
            "share: the agent's share of the words, an interval with a probability of 90% · error: upper"
            " bound on the probability that the agent wrote none of them"
        ]
    if report.allow_unattributed:
        rule = (
            f"its agent is found in the text and its error is at most {level}"
            if has_errors
            else f"its p alone passes at a false-discovery rate of {level}"
        )
        lines.append(f"a segment is attributed if {rule}")
    if report.options.get("attributed") == "tokens":
        lines.append(
            f"within a segment only those words are named whose own posterior passes level {level}: on"
            " average at most that share of the named words is by another writer"
        )
    return lines


def transition_lines(report: Report) -> list[str]:
    """Return the transition graph in words: edges with counts and confidence, topology, bitmask μ."""
    graph = report.transitions
    if not graph.observed:
        return ["transitions: none"]
    passages = sorted(graph.passages.items())
    edges = ", ".join(f"{a} → {b} ×{len(p)} ({max(p):.2f})" for (a, b), p in passages)
    names = ", equal to ".join(graph.topology.matches) or graph.topology.name
    return [f"transitions: {edges}", f"topology: {names} · bitmask {graph.bitmask:#x}"]


def limits(report: Report) -> list[str]:
    """Return the doubts about this report, and the limits of every report."""
    lines = []
    if report.seam_share is not None:
        lines.append(
            f"For {report.seam_share:.2%} of the characters, next to boundaries, it is uncertain how the"
            " writer's text was tokenized."
        )
    if report.invisible:
        lines.append(f"{report.invisible} invisible characters were removed before tokenizing.")
    if report.scored < MIN_TOKENS:
        lines.append(f"There are only {report.scored} scored tokens: too few for a useful attribution.")
    copied = copied_share(report.text or "")
    if copied >= COPIED_SHARE:
        lines.append(
            f"{copied:.0%} of the words stand earlier in the text, in the same order. A model that copies"
            " what it reads chooses few words itself, so its text carries a weak mark. Agents are easier to"
            " find if they sample at a higher temperature, read shorter prompts or, where the mark allows it,"
            " have a repetition penalty of 1.15 or so."
        )
    if report.segments:
        lines.append(
            "An agent wrote in its passages, but not necessarily every word of them: short unmarked or copied"
            " parts are read with the text around them. A verbatim quotation is attributed to the quoted"
            " agent."
        )
    theft = (
        ", or who has read its text: some hundred words suffice to write more in its name, unless the audit"
        " reads an index of published text."
        if report.published is None
        else ", or who has read text of it that is not in the index of published text."
    )
    lines += [
        "Short turns: in fewer than some dozens of tokens a mark is too weak to be read. Such turns are read"
        " with the text around them or stay unattributed.",
        "Edits: every changed word removes the mark of the words right after it. Text that another writer has"
        " rewritten is attributed to that writer's key, or stays unattributed.",
        "Predictable text: if the next word is certain (code, lists, quotations, greedy decoding), the text"
        " can hold no mark.",
        "Unattributed does not mean written by a person: it means that no key of this registry explains it.",
        "The probabilities hold if every agent has only its own key. They do not hold against someone who has"
        f" another agent's key{theft}",
    ]
    if any(isinstance(profile.scheme, WaterfallScheme) for profile in report.profiles):
        lines.append("The ids of this scheme are not secret: anyone who knows them can write as any agent.")
    return lines


def copied_share(text: str) -> float:
    """Return the share of a text's words that follow the same three words as earlier in it.

    0 in a text of fewer than `MIN_TOKENS` words. Writing without spaces has few words. O(length).
    """
    numbers = dict[str, int]()
    words = [numbers.setdefault(word, len(numbers)) for word in text.split()]
    if len(words) < MIN_TOKENS:
        return 0.0
    phrases = number_pairs(np.array(words), np.arange(len(words)) >= 3, 4)
    return float(repeats(phrases).mean())


_RESTORED = {
    "json": "the escapes of JSON",
    "html": "HTML's character references",
    "fence": "the code fence around it",
    "quoted": "marks of quotation",
    "indented": "indentation",
    "wrapped": "the ends of wrapped lines",
    "typography": "typographic characters",
}


def assumptions(report: Report) -> list[tuple[str, str]]:
    """Return the settings that affect the result: (name, value) of profiles, keys, decoder, text, model."""
    rows = []
    for profile in report.profiles:
        rows += [
            (f"profile {profile.id}", f"{profile.scheme}, V {profile.vocab_size:,}"),
            ("profile digest", profile.digest),
            ("tokenizer digest", profile.tokenizer_digest or "none: token ids only"),
        ]
    correction = "corrected for the number of keys (Holm), p alone also for the choice of segment"
    rows += [
        ("registry digest", report.registry_digest),
        ("keys of", f"{len(report.evidence):,} agents were read"),
        ("decoder", f"{report.decoder} {report.options or ''}".strip()),
        ("level", f"{report.level:g}" if report.allow_unattributed else "none: forced choice"),
        ("p-values", f"{_null_model(report)}; {correction}"),
        ("tokens", f"{report.tokens:,}, {report.scored:,} scored, {report.repeated:,} repeats"),
    ]
    if report.published is not None:
        total = report.published + report.scored
        share = f" ({report.published / total:.0%})" if total else ""
        rows.append(
            (
                "published before",
                f"{report.published:,} of {total:,} tokens that carry a score{share} follow the same words in"
                " the index of published text: anyone may have copied them, so they are no evidence",
            )
        )
    if report.sessions is not None:
        rows.append(("sessions", f"{sessions(report)}, digest {report.sessions.digest}"))
    if report.text is not None:
        rows.append(("text, SHA-256", hashlib.sha256(report.text.encode()).hexdigest()))
    if report.restored is not None:
        undone = ", ".join(_RESTORED[step] for step in report.restored)
        read = f"as before it was copied, without {undone}" if undone else "unchanged"
        rows.append(("read", f"{read}: the likeliest of several readings, for which p-values are corrected"))
    if report.model is not None:
        rows.append(("read with model", f"{report.model['name']}, digest {report.model['digest']}"))
    return rows


def explain(report: Report, segment: Segment) -> list[str]:
    """Say how sure it is that the segment's agent wrote it, why, and what would change that.

    Args:
        report: the report with the segment.
        segment: as `Report.redact_guesses` returns it.
    """
    guess, error, level = segment.best_guess, segment.error, _level(report.level)
    alone = odds(math.exp(segment.log_p))
    if segment.left_out:
        return ["The caller left this part out: it was not read."]
    if segment.quoted:
        return [
            f"No agent is named, because this is quoted: {segment.published:.0%} of its words were published"
            " before, after the same words. Anyone who read them could have put them here, so they are no"
            " evidence.",
            "What would change that: an audit of the published text itself, or one that knows which published"
            " texts this one is made of.",
        ]
    if guess is None:
        return [
            "No agent is named: no agent that was found in this text explains it.",
            "Why: the key that fits best is that of an agent whose mark the text as a whole does not show."
            " Some key always fits best, in any text.",
            "What would change that: more text of the same agent, or the registry with which it was marked.",
        ]
    if not report.allow_unattributed:
        sure = "" if segment.posterior is None else f"; its chance among them is {segment.posterior:.0%}"
        return [
            f"How sure: not tested, because one of the agents had to be named{sure}.",
            f"Why: forced choice. {guess} explains it best, however weakly.",
            "What would change that: another agent whose key fits a little better.",
        ]
    in_text = report.evidence.get(guess, 0.0)
    if segment.agent is None:
        likely = f"No agent is named: perhaps it was {guess}, but the evidence is too weak."
        chance = "No agent is named: no key of this registry explains this better than chance does."
        if error is None:
            why = f"a text without its mark looks like this with a chance of {alone}"
        elif in_text > math.log(report.level):
            why = (
                f"the text as a whole does not show {guess}'s mark: a text without it looks like this with a"
                f" chance of {odds(math.exp(in_text))}, and at most {level} was asked for"
            )
        else:
            why = f"the chance that it wrote none of this is {odds(error)}, and at most {level} was asked for"
        return [
            likely if is_likely(segment) else chance,
            f"Why: {guess} explains it best, but {why}.",
            "What would change that: more text of the same agent, a larger accepted chance of error, or the"
            " key of an agent that is not in this registry.",
        ]
    if error is None:
        return [
            f"How sure: text without {guess}'s mark shows as much evidence with a chance of {alone}.",
            f"Why: that chance is small enough: at most {level} of all passages with a name is to have a"
            " wrong one.",
            "What would change that: a smaller accepted chance of error, a shorter passage or many replaced"
            " words.",
        ]
    word = "very sure" if error < 1e-4 else "sure" if error <= 0.01 else "fairly sure"
    share = share_words(segment).capitalize()
    lines = [
        f"How sure: {word} that {guess} wrote in here. The chance that it wrote none of this is"
        f" {odds(error)}, if the assumptions below hold."
        + (f" {share} of these words are {guess}'s." if share else "")
    ]
    if segment.log_p > math.log(report.level):
        lines.append(
            "By itself this passage is too weak to show it: the chance of as much without the mark is"
            f" {alone}. It is read with the evidence for {guess} in the rest of the text."
        )
    if segment.published is not None and segment.published >= 0.2:
        lines.append(
            f"{segment.published:.0%} of its words were published before and may be quoted, so they are no"
            " evidence. The other words show it."
        )
    return [
        *lines,
        f"Why: the text as a whole shows {guess}'s mark (a text without it looks like this with a chance of"
        f" {odds(math.exp(in_text))}), and this chance of error is at most the {level} that was asked for.",
        "What would change that: it would have no name if a chance of"
        f" {odds(max(error, math.exp(in_text)))} were too much, if it were cut much shorter, or if many of"
        " its words were replaced.",
    ]


def share_words(segment: Segment) -> str:
    """Return the agent's share of a segment's words, as in "about 84 to 93%"; "" if it is unknown."""
    if segment.share_interval is None:
        return ""
    low, high = (f"{share:.0%}" for share in segment.share_interval)
    if low == high:
        return "nearly all" if low == "100%" else f"about {low}"
    return f"about {low[:-1]} to {high}"


def is_likely(segment: Segment) -> bool:
    """Return whether the best guess is more likely than chance, and so worth a name."""
    return segment.log_p < math.log(0.5) or (segment.error is not None and segment.error < 0.5)


def odds(probability: float) -> str:
    """Return a probability in words, as in "about 1 in 250"."""
    if probability < 1e-6:
        return "less than 1 in 1,000,000"
    if probability > 0.1:
        return f"{probability:.0%}"
    return f"about 1 in {float(f'{1 / probability:.2g}'):,.0f}"


def _level(level: float) -> str:
    """Return a level in words, with more digits than `odds`, because a user chose it."""
    return f"{level:.0%}" if level > 0.1 else f"1 in {float(f'{1 / level:.4g}'):,.10g}"


def small(probability: float) -> str:
    """Return a probability that was computed in float32, which says nothing below 1e-6."""
    return "< 1e-6" if probability < 1e-6 else p_value(math.log(probability))


def p_value(log_p: float) -> str:
    """Return a p-value of any size with two or three digits, from its natural log."""
    if log_p > math.log(1e-3):
        return f"{math.exp(log_p):.3g}"
    exponent = math.floor(log_p / math.log(10))
    mantissa = f"{math.exp(log_p - exponent * math.log(10)):.1f}"
    return f"1.0e{exponent + 1}" if mantissa == "10.0" else f"{mantissa}e{exponent}"
