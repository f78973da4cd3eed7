"""The examples run unchanged, and print the documented output."""

from __future__ import annotations

import ast
import json
import pathlib
import random
import re
import runpy
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
NOTEBOOK = EXAMPLES / "who_wrote_what.ipynb"


@pytest.fixture(autouse=True)
def alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own and keys that are the same at every run."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(secrets, "token_bytes", random.Random(0).randbytes)
    monkeypatch.setattr(sys, "argv", ["python"])
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of an example that runs as a script."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_every_example_is_listed_and_tested() -> None:
    listed = re.findall(r"\[(\w+\.\w+)\]\(\1\)", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")]
    assert sorted(listed) == sorted(files)
    tests = pathlib.Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in tests for name in files)


def test_marking_with_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    output = printed("mark_with_transformers.py", capsys)
    rows = re.findall(r"^(\d+)  +(\d+)-(\d+)  +\d+-\d+  +(\S+)", output, re.MULTILINE)
    assert [agent for *_, agent in rows] == ["planner", "critic"]
    end = int(re.match(r".*\n([\d,]+) characters", output)[1].replace(",", ""))  # type: ignore[index]
    assert int(rows[0][1]) == 0
    assert abs(int(rows[0][2]) / end - 0.5) < 0.1  # the hand-over
    assert int(rows[-1][2]) == end


def test_a_hosted_team(capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("openai", "fastapi", "uvicorn"):
        pytest.importorskip(package)
    output = printed("hosted_team.py", capsys)
    rows = re.findall(r"^(\d+)  +(\d+)-(\d+)  +\d+-\d+  +(\S+)", output, re.MULTILINE)
    assert [agent for *_, agent in rows] == ["planner", "critic"]
    assert "planner: select, 15 requests, 8.0 generated tokens" in output


def test_auditing_a_folder(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    output = printed("audit_folder.py", capsys)
    shares = dict(re.findall(r"\d+%  (\w+)\.txt: (.+)", output))
    assert shares["human"] == "no agent"
    assert shares["plan"] == "planner"
    assert shares["inserted"] == "engineer"
    assert set(shares["review"].split(", ")) == {"planner", "critic"}
    pages = re.findall(r"open (\S+)", output)
    assert "audit-folder/inserted.html" in pages
    assert "audit-folder/human.html" not in pages
    assert sorted(tmp_path.glob("audit-folder/*.html")) == sorted(tmp_path / page for page in pages)
    assert "engineer" in (tmp_path / "audit-folder/inserted.html").read_text(encoding="utf-8")
    assert list(tmp_path.glob("audit-folder/tables/segments-*.parquet"))
    with pytest.raises(SystemExit, match="audit-folder exists"):
        printed("audit_folder.py", capsys)


def test_a_langgraph_team(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("langgraph")
    output = printed("langgraph_team.py", capsys)
    turns = "planner → researcher → critic → researcher → critic → writer"
    assert f"who wrote, in order: {turns}\n" in output
    edges = re.findall(r"^ *(\w+) → (\w+) +(in the graph|not there) +(seen|not seen)", output, re.MULTILINE)
    assert edges == [
        ("critic", "researcher", "in the graph", "seen"),
        ("critic", "writer", "in the graph", "seen"),
        ("planner", "researcher", "in the graph", "seen"),
        ("researcher", "critic", "in the graph", "seen"),
    ]


def test_a_langgraph_guard(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("langgraph")
    output = printed("langgraph_guard.py", capsys)
    assert re.findall(r"^ *(\w+): ", output, re.MULTILINE) == [
        "user",
        "planner",
        "critic",
        "planner",
        "guard",
    ]
    assert output.endswith("message 3 was sent as planner and bears the mark of critic\n")


def test_a_crewai_guardrail(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("crewai")
    output = printed("crewai_guard.py", capsys)
    assert "sent back: it was sent as planner and bears the mark of critic\n" in output
    assert "confirmed: it was sent as planner\n" in output
    assert re.search(r"^accepted: [2-9]\d\d characters$", output, re.MULTILINE)


def test_the_notebook(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    values, names = [], dict[str, Any]()
    for cell in code_cells():
        *statements, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(statements, []), NOTEBOOK.name, "exec"), names)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names))
        else:
            exec(compile(ast.Module([last], []), NOTEBOOK.name, "exec"), names)
    matplotlib.pyplot.close("all")
    report = names["report"]
    assert set(report.found) == {"planner", "critic", "engineer"}
    assert any(value is report for value in values)  # a cell ends with it
    html = report._repr_html_()
    assert all(f"<sup>{agent}</sup>" in html for agent in report.found)
    output = capsys.readouterr().out
    assert "unmarked text: found ()" in output
    assert re.search(r"^\| gumbel \| 3 \| ≤ 32 \|", output, re.MULTILINE)
    for agent in ("planner", "critic", "unmarked", "engineer"):
        share = re.search(rf"^{agent} +read as .*\b{agent} (\d+)%", output, re.MULTILINE)
        assert share is not None
        assert int(share[1]) > 50
    assert list(tmp_path.iterdir()) == []


def test_the_notebook_holds_its_outputs_and_nothing_of_a_machine() -> None:
    assert NOTEBOOK.stat().st_size < 300_000
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/(tmp|root|home|work|usr|Users)/", text)
    notebook = json.loads(text)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert set(notebook["metadata"]["language_info"]) == {"name"}
    cells = code_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert not any(output.get("name") == "stderr" for output in outputs)
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 2
    assert kinds.count("text/html") == 1


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]
