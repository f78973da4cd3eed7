"""What a report says in words, the same in a terminal and on the page."""

from __future__ import annotations

import hashlib
import math
from typing import Any

from iet.foreign import ForeignProfile
from iet.lines import harmless
from iet.report.model import Report, Segment, extent, p_value
from iet.scheme import Profile
from iet.waterfall import WaterfallScheme

# Okabe and Ito's palette: told apart by the colour-blind. More agents than colours share them.
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")


def chance(probability: float) -> str:
    """Return the probability of an error as people read it."""
    # A posterior is a float32: of less than a millionth it says no more.
    return "< 1e-6" if probability < 1e-6 else p_value(math.log(probability))


def headline(report: Report) -> list[str]:
    """Return what was read, and how."""
    count = len(report.segments)
    size = f"{len(report.text):,} characters, " if report.text is not None else ""
    separator = " · " if len(report.profiles) == 1 else "\n  "
    choice = f"{report.coverage:.0%} attributed at level {report.level:g}"
    left_out = f", {report.left_out:,} left out" if report.left_out else ""
    several = "" if len(report.profiles) == 1 else f" of {len(report.profiles)} profiles"
    return [
        f"{size}{report.tokens:,} tokens{several}"
        f" ({report.scored:,} scored, {report.repeated:,} repeats{left_out})"
        f" · {count} segment{'' if count == 1 else 's'}"
        f" · {choice if report.allow_unattributed else 'forced choice'}",
        f"decoder {report.decoder} · {len(report.agents)} agents"
        + "".join(f"{separator}{_profile(profile)}" for profile in report.profiles),
        *_model_line(report),
    ]


def evidence_lines(report: Report) -> list[str]:
    """Return who is found in the text, and how surely."""
    law = f"ranks among {report.decoys} decoy keys" if report.decoys else "the null law of scores"
    rule = f"p-values from {law}, corrected for the number of keys"
    agents = ", ".join(f"{name} (p {p_value(report.evidence[name])})" for name in report.found)
    who = agents or f"none; lowest p {p_value(report.log_p)}"
    return [f"agents found in the text at level {report.level:g}: {who} · {rule}"]


def legend(report: Report) -> list[str]:
    """Return what the columns of the segments say, as far as they are filled."""
    if not report.segments:
        return []
    lines = ["p alone: p-value of this segment by itself, whatever the rest of the text says about its agent"]
    if any(segment.error is not None for segment in report.segments):
        lines[:0] = [
            "posterior: mean probability, over its tokens, that the agent wrote them ·"
            " error: probability, at most, that it wrote none of them"
        ]
    if report.allow_unattributed:
        rule = "error is at most {0}" if len(lines) > 1 else "p alone passes at a false-discovery rate of {0}"
        found = "its agent is found in the text and its " if len(lines) > 1 else "its "
        lines.append(f"a segment is attributed if {found}{rule.format(f'{report.level:g}')}")
    return lines


def _profile(profile: Profile | ForeignProfile) -> str:
    draft = " · draft family" if profile.family.version == 0 else ""
    return f"profile {profile.id}: {profile.scheme}, V {profile.vocab_size}{draft}"


def _model_line(report: Report) -> list[str]:
    if report.model is None:
        return []
    name, temperature, share = (report.model[field] for field in ("name", "temperature", "share"))
    fitted = " (fitted)" if report.model["temperature_fitted"] else ""
    return [f"read with {harmless(name)} at temperature {temperature:g}{fitted}, weight {share:.0%}"]


def transition_lines(report: Report) -> list[str]:
    """Return the transition graph in words: edges with counts and confidence, topology, μ."""
    t = report.transitions
    if not t.observed:
        return ["transitions: none"]
    confidence: dict[tuple[Any, Any], list[float]] = {}
    for passage in t.observed:
        confidence.setdefault((passage.source, passage.target), []).append(passage.confidence)
    edges = ", ".join(f"{a} → {b} ×{len(p)} ({max(p):.2f})" for (a, b), p in sorted(confidence.items()))
    names = " = ".join(t.topology.matches) or t.topology.name
    return [f"transitions: {edges}", f"as a graph: {names} · μ = {t.bitmask:#x}"]


def caveats(report: Report) -> list[str]:
    """Return what this report in particular is unsure of."""
    lines = []
    if report.seam_share is not None:
        lines.append(f"tokenization uncertain at the seams: {report.seam_share:.2%} of the characters")
    if report.invisible:
        lines.append(f"{report.invisible} invisible characters were left out before tokenizing")
    if report.scored < 30:
        lines.append(f"only {report.scored} scored tokens: too short to attribute at any useful level")
    if report.segments:
        lines.append(
            "an agent wrote in its segments, not every word of them: short unmarked or copied passages inside"
            " are read with their surroundings; a verbatim quotation reads as the quoted agent"
        )
    return lines


def verdict(report: Report) -> str:
    """Return the answer in one line."""
    if not report.segments:
        return "Nothing in this text could be read"
    if not report.allow_unattributed:
        return f"Every token given to one of {len(report.agents)} agents (forced choice)"
    if not report.found:
        return "No registered agent was found in this text"
    count = len(report.found)
    some = ", ".join(report.found[:6]) + (f" and {count - 6} more" if count > 6 else "")
    return f"{some} wrote in this text; {report.coverage:.0%} of it is attributed"


def in_order(report: Report) -> tuple[list[str], list[str]]:
    """Return the agents who occur, as they appear, and the others that were read, the surest first."""
    wrote = list(dict.fromkeys(s.agent for s in report.segments if s.agent is not None))
    rest = set(report.evidence).difference(wrote)
    return wrote, sorted((name for name in report.evidence if name in rest), key=report.evidence.__getitem__)


def shares_of(report: Report) -> dict[str | None, float]:
    """Return the share of what was read that each agent has, and nobody (None)."""
    shares: dict[str | None, float] = {}
    for segment in report.segments:
        start, end = extent(segment)
        if not segment.left_out:
            shares[segment.agent] = shares.get(segment.agent, 0) + end - start
    total = sum(shares.values()) or 1
    return {agent: size / total for agent, size in shares.items()}


def interval_unit(report: Report) -> str:
    """Return what the intervals of boundaries count."""
    return "characters" if len(report.profiles) > 1 else "tokens"


def within(segment: Segment) -> str:
    """Say where the segment's two boundaries may lie, as far as they are uncertain."""
    if segment.start_interval is None or segment.end_interval is None:
        return ""
    (a, b), (c, d) = segment.start_interval, segment.end_interval
    return f"{a:,} to {b:,} · {c:,} to {d:,}"


AGENT_COLUMNS = ("agent", "found", "p in the text", "strength of its mark", "segments", "share")
"""Of the table of agents."""


def agent_row(report: Report, name: str, shares: dict[str | None, float]) -> list[str]:
    """Return what the table of agents says of one, with the shares that all have (`shares_of`)."""
    strength = None if report.strengths is None else report.strengths.get(name)
    count = sum(segment.agent == name for segment in report.segments)
    return [
        name,
        "yes" if name in report.found else "no",
        p_value(report.evidence[name]),
        "" if strength is None else f"{strength:.2f}",
        str(count),
        f"{shares.get(name, 0.0):.1%}",
    ]


def agents_note(report: Report, more: int) -> list[str]:
    """Return what stands at the table of agents, which leaves out so many of them."""
    lines = evidence_lines(report)
    if more:
        lines.append(f"{more} more agents of the registry, with higher p-values, are not shown.")
    return lines


def assumed(report: Report) -> list[tuple[str, str]]:
    """Return what the report rests on."""
    rows = []
    for profile in report.profiles:
        rows += [
            (f"profile {profile.id}", f"{profile.scheme}, V {profile.vocab_size:,}"),
            ("profile digest", profile.digest),
            ("tokenizer digest", profile.tokenizer_digest or "none: token ids only"),
        ]
    law = f"ranks among {report.decoys} decoy keys" if report.decoys else "the null law of scores"
    rows += [
        ("registry digest", report.registry_digest),
        ("keys of", f"{len(report.evidence):,} agents were read"),
        ("decoder", f"{report.decoder} {report.options or ''}".strip()),
        ("level", f"{report.level:g}" if report.allow_unattributed else "none: forced choice"),
        (
            "p-values",
            f"{law}; corrected for the number of keys (Holm), p alone also for the choice of segment",
        ),
        ("tokens", f"{report.tokens:,}, {report.scored:,} scored, {report.repeated:,} repeats"),
    ]
    if report.text is not None:
        rows.append(("text, SHA-256", hashlib.sha256(report.text.encode()).hexdigest()))
    if report.model is not None:
        rows.append(("read with model", f"{report.model['name']}, digest {report.model['digest']}"))
    return rows


def cannot(report: Report) -> list[str]:
    """Return what this report is unsure of, and what no report can say."""
    lines = caveats(report)
    lines += [
        "Short turns: below some dozens of tokens a mark is too weak to be read; such turns are read with"
        " their surroundings or stay unattributed.",
        "Edits: every changed word hides the mark of the words right after it. What somebody else has"
        " rewritten is that somebody's, or nobody's.",
        "Low entropy: where the next word was certain (code, lists, quotations, greedy decoding) no mark fits"
        " in.",
        "Unattributed does not mean written by a person: it means that no key of this registry explains it.",
        "A p-value speaks of agents who hold only their own keys. It is no proof against someone who has"
        " another's key, or who has learnt it from much text.",
    ]
    if any(isinstance(profile.scheme, WaterfallScheme) for profile in report.profiles):
        lines.append(
            "The ids of this scheme are no secrets: whoever knows them can write as any of the agents."
        )
    return lines
