"""Claims about who wrote which piece: confirmed, contradicted or open, and how often wrongly."""

from __future__ import annotations

import html
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

import iet
from iet import kernels
from iet.audit.evidence import holm, log_tail
from iet.decoding.activity import BLOCK, LEVELS, unweighted_sums
from iet.errors import InputError
from iet.native.pairs import novelty_weights
from iet.report import telemetry
from iet.report.claims import MEANINGS, ClaimReport
from tests.support.teams import NAMES, WORD_TOKENIZER, WORDS, secret, team
from tests.support.texts import reader, spell, write

FAMILIES: dict[str, dict[str, Any]] = {
    "fourier": {"kappa": 2.0, "n_gram": 2},
    "gumbel": {"family": "gumbel", "n_gram": 3},
}


def verdicts(report: ClaimReport) -> list[tuple[str, str | None]]:
    return [(piece.verdict, piece.agent) for piece in report.pieces]


def marked_text(registry: iet.Registry, agent: str | None, seed: int, tokens: int = 120) -> str:
    return spell(write(registry, [(agent, tokens)], seed, flat=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_verdicts(family: str) -> None:
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    pieces = [
        marked_text(registry, name, seed) for seed, name in enumerate((*NAMES, None, "planner", "writer"))
    ]
    claims = ["planner", "writer", None, "critic", "planner", "Bob"]
    report = reader(registry).check([*pieces, "w1 w2"], [*claims, "critic"])
    assert verdicts(report) == [
        ("confirmed", "planner"),
        ("contradicted", "critic"),
        ("named", "writer"),
        ("open", None),
        ("confirmed", "planner"),
        ("unknown name", "writer"),
        ("open", None),
    ]
    assert report.headline == "7 pieces: 2 confirmed, 1 contradicted, 1 named, 1 unknown name, 2 open"


@pytest.mark.parametrize("family", FAMILIES)
def test_p_values_are_null_tails_over_counted_tokens(family: str) -> None:
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    words = [write(registry, [(name, 40)], seed, ids=range(1, 40)) for seed, name in enumerate(NAMES)]
    words[2] = [*words[0][5:30], *words[2]]  # a quotation
    report = reader(registry, level=1e-9).check([spell(ids) for ids in words], NAMES)

    n, law = registry.profile.scheme.n_gram, registry.profile.family
    keys, counted_pairs = registry.scoring_keys(), set[tuple[int, ...]]()
    critic_text = []
    for d, ids in enumerate(words):
        scores = iet.score_tokens(np.array(ids), keys)
        numbers = kernels.pair_numbers(ids, keys)
        counted, seen = [], set[int]()
        for t in range(n - 1, len(ids)):
            if numbers[t] in seen or tuple(ids[t - n + 1 : t + 1]) in counted_pairs:
                continue
            seen.add(numbers[t])
            counted.append(t)
        counted_pairs |= {tuple(ids[t - n + 1 : t + 1]) for t in range(n - 1, len(ids))}
        total, number = float(scores[counted, d].sum()), len(counted)
        if family == "gumbel":
            weights = np.rint(LEVELS * novelty_weights(np.array(ids))[counted]).astype(int)
            sums = np.array([[scores[counted, d] @ weights / LEVELS]])
            number = BLOCK
            total = unweighted_sums(sums, np.bincount(weights - 1, minlength=LEVELS)[None])[0, 0]
        critic_text.append(log_tail(total, number, law))
        assert report.pieces[d].counted == len(counted)
    assert [piece.log_p for piece in report.pieces] == pytest.approx(holm(np.array(critic_text)), rel=1e-5)
    assert report.pieces[2].repeated >= 25 - n


@pytest.mark.parametrize("family", FAMILIES)
def test_quoting_an_agent_does_not_contradict_the_claim(family: str) -> None:
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    plan, critic_text = marked_text(registry, "planner", 1, 200), marked_text(registry, "critic", 2)
    quoting = f"{plan} {critic_text}"
    report = reader(registry).check([plan, quoting, f"{critic_text} {plan}"], ["planner", "critic", "writer"])
    assert verdicts(report)[:2] == [("confirmed", "planner"), ("confirmed", "critic")]
    assert report.pieces[1].also is None
    assert verdicts(report)[2] == ("open", None)
    assert "repeat an earlier piece" in report.pieces[2].note
    # Text quoted from outside the record counts for the quoted agent, as documented.
    (alone,) = reader(registry).check([quoting], ["critic"]).pieces
    assert (alone.verdict, alone.also) == ("confirmed", "planner")
    source = reader(registry).check([plan, quoting], [None, "critic"], skip=[0])
    assert verdicts(source) == [("skipped", None), ("confirmed", "critic")]
    assert source.pieces[1].also is None


@pytest.mark.parametrize("family", FAMILIES)
def test_true_claims_are_hardly_ever_contradicted(family: str) -> None:
    # At level 0.2, which 40 conversations can test: at most a fifth of them may have a false finding.
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    auditor, wrong = reader(registry, level=0.2), 0
    for seed in range(40):
        names = [NAMES[i] for i in np.random.default_rng(seed).integers(0, 3, 6)]
        pieces = [marked_text(registry, name, 10 * seed + i, 30) for i, name in enumerate(names)]
        wrong += bool(auditor.check(pieces, names).of("contradicted"))
    assert wrong <= 16  # 8 expected at most; more than 16 has a chance of 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_unmarked_text_confirms_and_names_no_agent(family: str) -> None:
    registry = team(tokenizer=WORD_TOKENIZER, **FAMILIES[family])
    auditor, confirmed, named = reader(registry, level=0.2), 0, 0
    for seed in range(60):
        words = np.random.default_rng(seed).integers(1, WORDS, (8, 60)).tolist()
        report = auditor.check([spell(ids) for ids in words], ["planner", "critic", None, None] * 2)
        confirmed += bool(report.of("confirmed"))
        named += bool(report.of("named") or report.of("contradicted"))
    assert confirmed <= 23  # 12 expected at most; more than 23 has a chance of 5e-4
    assert named <= 23


def test_agents_with_several_keys_are_one() -> None:
    registry = team(("planner",), tokenizer=WORD_TOKENIZER, family="gumbel", n_gram=3)
    registry.add("critic", secret=secret("critic"))
    for epoch in range(1, 4):
        registry.rotate("critic", secret=secret(f"critic {epoch}"))
    old = marked_text(registry, "planner", 1)
    registry.rotate("planner", secret=secret("new"))
    texts = [spell(write(registry, [("critic", 120)], 2, epochs=[e], flat=True)) for e in range(4)]
    report = reader(registry).check(
        [old, marked_text(registry, "planner", 3), *texts], ["planner"] * 2 + ["critic"] * 4
    )
    assert [piece.verdict for piece in report.pieces] == ["confirmed"] * 6


def test_many_agents_and_those_of_other_profiles() -> None:
    registry = team(tokenizer=WORD_TOKENIZER, kappa=3.0)
    registry.add_many([f"agent-{i}" for i in range(100)])
    second = registry.add_profile(tokenizer=WORD_TOKENIZER, scheme=iet.Scheme(family="gumbel", n_gram=3))
    registry.add("other", secret=secret("other"), profile=second)
    planner = marked_text(team(tokenizer=WORD_TOKENIZER, kappa=3.0), "planner", 1)
    alone = team((), tokenizer=WORD_TOKENIZER, family="gumbel", n_gram=3)
    alone.add("other", secret=secret("other"))
    other_text = marked_text(alone, "other", 2)
    report = iet.Auditor(registry).check([planner, other_text, other_text], ["agent-7", "other", "planner"])
    assert verdicts(report)[:2] == [("contradicted", "planner"), ("confirmed", "other")]


def test_open_claims_state_the_tokens_they_need() -> None:
    registry = team(tokenizer=WORD_TOKENIZER, family="gumbel", n_gram=3)
    auditor = reader(registry, level=1e-5)
    pieces = [marked_text(registry, "planner", seed, 150) for seed in range(3)]
    short = marked_text(registry, "planner", 9, 1)
    report = auditor.check([*pieces, short], ["planner"] * 4)
    enough = report.pieces[3].enough
    assert enough is not None
    assert 1 < enough < 40
    assert str(enough) in report.pieces[3].note
    # The estimate is right: texts of twice as many tokens are nearly always confirmed.
    longer = [marked_text(registry, "planner", 20 + seed, 2 * enough) for seed in range(4)]
    assert len(auditor.check(longer, ["planner"] * 4).of("confirmed")) >= 3
    assert auditor.check([short], ["planner"]).pieces[0].enough is None


@pytest.mark.parametrize(
    ("pieces", "claims", "skip", "words"),
    [
        (["w1"], [], (), "claims: got 0, expected one for each of 1 pieces"),
        ("w1", ["planner"], (), "pieces: got str, expected a list"),
        (["w1"], "planner", (), "claims: got str, expected a list"),
        ([b"w1"], [None], (), r"pieces\[0\]: got bytes, expected str"),
        (["w1"], [3], (), r"claims\[0\]: got int, expected the name of an agent"),
        (["w1"], [None], [1], "skip: got 1, expected numbers of pieces, 0 to 0"),
        (["w1"], [None], ["0"], "skip: got '0'"),
        (["w1"], [None], 0, "skip: got 0, expected numbers of pieces"),
        (["w1"], [None], [[0]], r"skip: got \[0\], expected numbers of pieces"),
        (["w1"], [None], [False], "skip: got False, expected numbers of pieces, 0 to 0"),
        (["w1", "\ud800"], [None, None], (), r"pieces\[1\]: .*surrogate"),
    ],
)
def test_rejects_invalid_arguments(pieces: Any, claims: Any, skip: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        reader().check(pieces, claims, skip=skip)


def test_pieces_of_an_unknown_verdict_are_empty() -> None:
    report = reader().check(["w1"], [None])
    assert (report.of("open"), report.of("named")) == (report.pieces, ())
    with pytest.raises(InputError, match="verdict: got 'confimed', expected one of confirmed, contradicted,"):
        report.of("confimed")  # type: ignore[arg-type]


def test_published_text_is_reported(tmp_path: pathlib.Path) -> None:
    registry = team(tokenizer=WORD_TOKENIZER, family="gumbel", n_gram=3)
    old, critic_text = marked_text(registry, "planner", 1), marked_text(registry, "critic", 2)
    index = iet.PublishedIndex(tmp_path / "out.idx", registry, create=True)
    index.add("planner", [f"w9 {old}", critic_text])
    pieces = [old, f"{old} {critic_text}", critic_text]
    report = reader(registry, published=index).check(pieces, ["planner", "critic", "critic"])
    # A verbatim copy of published text is recognised, and is evidence.
    assert verdicts(report) == [("open", None), ("open", None), ("confirmed", "critic")]
    assert report.pieces[0].published == report.pieces[0].tokens - 2
    assert report.pieces[0].note == f"{report.pieces[0].published} of its tokens were published before"
    assert report.pieces[2].published == 0
    plain = reader(registry).check(pieces[:1], ["planner"])
    assert (verdicts(plain), plain.pieces[0].published) == ([("confirmed", "planner")], None)


def test_empty_texts_are_no_finding() -> None:
    nothing = reader().check([], [])
    assert nothing.pieces == ()
    assert nothing.text().startswith("0 pieces: nothing to check")
    (piece,) = reader().check(["w1"], [None], skip=np.array([0])).pieces
    assert (piece.verdict, piece.reason) == ("skipped", "said to be no agent's")
    (piece,) = reader().check(["w1"], [None], skip={0: "tool output"}).pieces
    assert (piece.verdict, piece.note) == ("skipped", "tool output")
    report = reader().check(["", " ", "w1"], ["planner", None, None])
    assert [piece.verdict for piece in report.pieces] == ["open"] * 3
    assert "it has no token that can be read" in report.pieces[0].note


@pytest.fixture(scope="module")
def report() -> ClaimReport:
    registry = team(tokenizer=WORD_TOKENIZER, family="gumbel", n_gram=3)
    pieces = [marked_text(registry, name, seed) for seed, name in enumerate(NAMES)]
    return reader(registry).check([*pieces, "hi"], ["planner", "writer", "=<b>\x1b[2J", None], skip=[3])


def test_all_formats_agree_and_hold_no_text(report: ClaimReport) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    assert data["schema"] == "iet.claims/1"
    assert [piece["verdict"] for piece in data["pieces"]] == [
        "confirmed",
        "contradicted",
        "unknown name",
        "skipped",
    ]
    for form in (report.text(80), report.to_html(("<x>",)), report.to_csv(), json.dumps(data)):
        assert "w1" not in form.split()
        assert secret("planner").hex() not in form
        assert all(verdict in form for verdict in ("confirmed", "contradicted"))
    assert "\x1b" not in report.text(80)
    page = report.to_html(("<x>",))
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "&lt;x&gt;" in page
    assert "\r\n2,'=<b>" in report.to_csv()
    assert max(map(len, report.text(60).splitlines()[3 : len(report.pieces) + 6])) <= 60
    assert all(
        MEANINGS[verdict] in html.unescape(page) for verdict in ("confirmed", "contradicted", "skipped")
    )


def test_events_are_emitted_to_opentelemetry(report: ClaimReport) -> None:
    logs = pytest.importorskip("opentelemetry.sdk._logs")
    export = pytest.importorskip("opentelemetry.sdk._logs.export")
    provider = logs.LoggerProvider()
    memory = export.InMemoryLogRecordExporter()
    provider.add_log_record_processor(export.SimpleLogRecordProcessor(memory))
    assert telemetry.emit(report.events(), provider.get_logger("test")) == 3
    records = [log.log_record for log in memory.get_finished_logs()]
    assert [record.event_name for record in records] == ["gen_ai.evaluation.result"] * 3
    labels = [record.attributes["gen_ai.evaluation.score.label"] for record in records]
    assert labels == ["confirmed", "contradicted", "unknown name"]
    assert records[1].attributes["iet.agent"] == "critic"
    assert math.isfinite(records[0].attributes["iet.log_p"])
