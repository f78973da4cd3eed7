"""Runs of Table 1 side by side."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from benchmarks.accuracy import curve
from benchmarks.paper import across, plots
from benchmarks.paper.experiments.table1 import METHODS
from iet.errors import InputError


def content(entropy: float, accuracy: float, settings: tuple[str, ...] = ("chain 4",)) -> dict[str, Any]:
    """What Table 1 writes, as far as it is read here."""
    configuration = {name: 1 for name in across.KEPT} | {"turn_tokens": [32, 512], "protocol": "round-major"}
    configuration |= {"records_for_options": [1, 2], "model": "iet:demo"}
    said = "IET gumbel, posterior"
    cell = {name: [accuracy, accuracy - 0.1, accuracy + 0.1] for name in settings}
    figures = {"TokenAcc": {"mean difference": [0.2, 0.1, 0.3], "better in": len(settings)}}
    return {
        "configuration": configuration,
        "digest": "d",
        "entropy": {"gumbel": entropy},
        "strength": {"gumbel": None, "kgw": 1.126, "kgw_published": 2.0},
        "logs": {"tokens": 100},
        "table": [
            *({"method": said, "figure": figure, **cell} for figure in ("TokenAcc", "IoU", "EdgeSim")),
            {"method": "Recursive", "figure": "TokenAcc", **cell},
            {"method": "Recursive", "figure": "EdgeSim", **dict.fromkeys(settings)},
        ],
        "free": [{"method": said, "figure": "coverage", **cell}],
        "against": {
            "IET gumbel, told the order": {"Recursive, in order": figures},
            "IET fourier, posterior": {"Recursive, in order": figures, "KGW, posterior": figures},
            "IET gumbel, posterior": {"Recursive": figures},
            "IET raw, cusum (tuned)": {"Recursive": figures},
        },
    }


def test_a_run_keeps_its_methods_and_its_leads_over_who_is_told_as_much() -> None:
    run = across.run_of(content(0.5, 0.7))
    assert run["methods"]["IET gumbel, posterior"]["coverage"] == [
        0.7,
        pytest.approx(0.6),
        pytest.approx(0.8),
    ]
    assert run["methods"]["Recursive"] == {"TokenAcc": run["methods"]["IET gumbel, posterior"]["TokenAcc"]}
    assert run["against"] == {
        "IET gumbel, told the order": {"Recursive, in order": [0.2, 0.1, 0.3]},
        "IET fourier, posterior": {"KGW, posterior": [0.2, 0.1, 0.3]},
        "IET gumbel, posterior": {"Recursive": [0.2, 0.1, 0.3]},
    }
    assert run["strength"] == {"kgw": 1.126}
    assert run["tuning"] == 2
    many = across.run_of(content(0.5, 0.7, ("chain 4", "tree 4")))
    assert many["methods"]["Recursive"]["TokenAcc"] == [pytest.approx(0.7)]


def test_the_table_has_a_column_a_run_and_the_order_of_the_methods() -> None:
    shown = across.markdown([across.run_of(content(0.5, 0.7)), across.run_of(content(2.0, 0.9))])
    assert "|  | chain 4, 0.50 nats, round-major, 32 to 512 tokens, 1 records | chain 4, 2.00 nats," in shown
    assert shown.index("| Recursive | 0.700 (0.600, 0.800) | 0.900") < shown.index(
        "| IET gumbel, posterior |"
    )
    lead = "0.200 (0.100, 0.300)"
    assert f"| IET gumbel, told the order | Recursive, in order | {lead} | {lead} |" in shown
    assert "| Recursive |" not in shown.split("**EdgeSim**")[1].split("**coverage**")[0]
    assert shown.endswith("T = 1, top-p 1, round-major: gumbel 2.00; δ = 1.13.")
    assert "model" not in shown
    assert "penalty" not in shown


def test_another_model_and_a_penalty_are_named_and_where_it_lay_is_not(tmp_path: pathlib.Path) -> None:
    one = content(0.5, 0.7)
    for model, name in ((str(tmp_path / "larger"), "larger"), ("hub/larger", "hub/larger")):
        one["configuration"] |= {"model": model, "repetition_penalty": 1.3}
        run = across.run_of(one)
        assert (run["model"], run["repetition_penalty"]) == (name, 1.3)
        shown = across.markdown([run])
        assert f"Nats: model {name}, T = 1, top-p 1, repetition penalty 1.3, round-major: " in shown
        assert "| chain 4, 0.50 nats, penalty 1.3, round-major," in shown


def test_the_command_writes_runs_by_entropy_and_refuses_what_is_no_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for name, nats in (("b", 2.0), ("a", 0.5)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "table1.json")
        written = content(nats, 0.8)
        written["configuration"]["temperature"] = nats
        paths[-1].write_text(json.dumps(written))
    out = tmp_path / "runs.json"
    monkeypatch.setattr("sys.argv", ["across", "--runs", *map(str, paths), "-o", str(out)])
    across.main()
    found = json.loads(out.read_text())
    assert [run["entropy"]["gumbel"] for run in found["runs"]] == [0.5, 2.0]
    assert str(tmp_path) not in out.read_text()
    paths[0].write_text(json.dumps({**written, "entropy": {"gumbel": 0.6}}))  # of more records, say
    again = tmp_path / "again.json"
    monkeypatch.setattr("sys.argv", ["across", "--runs", str(out), str(paths[0]), "-o", str(again)])
    across.main()
    found = json.loads(again.read_text())
    assert [run["entropy"]["gumbel"] for run in found["runs"]] == [0.6, 2.0]
    paths[0].write_text("{}")
    with pytest.raises(InputError, match="with entropies by mark"):
        across.main()


def test_the_committed_runs_are_of_known_methods_and_checks_of_the_curve() -> None:
    paths = [curve.RESULTS / "paper" / f"{name}.json" for name in curve.LONG_TURNS]
    own, others = (json.loads(path.read_text(encoding="utf-8"))["runs"] for path in paths)
    runs = own + others
    methods = {name.replace(" version 2", "") for run in runs for name in run["methods"]}  # of a draft
    assert methods <= {method.name for method in METHODS}
    table: dict[str, Any] = {
        "information": {"entropy": [0.1, 5.0], "fourier": [0.01, 0.1], "gumbel": [0.1, 1.0]}
    }
    cells = [cell for cell in curve.conversations(curve.RESULTS, table) if "T = " in cell.run]
    assert len(cells) == 2 * len(runs)
    assert sum(cell.run.startswith("larger model") for cell in cells) == 2 * len(others)
    assert all(set(cell.figures) == {"token_accuracy", "iou", "coverage"} for cell in cells)
    walks = sum(run["protocol"] == "edge-walk" for run in own)
    assert sum(cell.kind == "checks" for cell in cells) == 2 * (walks + len(others))


def test_settings_of_two_runs_are_drawn_by_entropy(tmp_path: pathlib.Path) -> None:
    low, high = (across.run_of(content(*figures)) for figures in ((2.0, 0.9), (0.5, 0.7)))
    one = across.run_of(content(1.0, 0.8, ("chain 5",)))
    found = across.panels([low, high, one])
    assert list(found) == [f"chain 4, {told}" for told in across.DRAWN]
    ((name, nats, values),) = found["chain 4, told nothing"]
    assert (name, nats) == ("IET gumbel, posterior", [0.5, 2.0])
    assert [value.mean for value in values] == [0.7, 0.9]
    assert [value.low for value in values] == pytest.approx([0.6, 0.8])
    apart = across.panels([low, high, {**low, "repetition_penalty": 1.2}])["chain 4, told nothing"]
    assert [nats for _, nats, _ in apart] == [[2.0], [0.5, 2.0]]  # those with the penalty, then without
    (path,) = plots.curves(tmp_path / "x", {"a": apart, **found}, xlabel="nats per token")
    shown = path.read_text(encoding="utf-8")
    assert (
        shown.count(">IET gumbel, posterior<") == 1
    )  # of both lines of "a", and of the panel of the same names
    assert ">0.50<" in shown
    assert ">chain 4, told the turns<" in shown


def test_the_names_that_are_drawn_are_methods() -> None:
    assert {name for names in across.DRAWN.values() for name in names} <= {method.name for method in METHODS}
