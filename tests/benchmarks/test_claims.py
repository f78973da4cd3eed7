"""The list of measured numbers: the committed one, and that the check notices what is wrong."""

from __future__ import annotations

import pathlib
import subprocess
import tomllib
from typing import Any

import pytest

from benchmarks import claims

README = """The audit takes 1.25 s, and 12.5 % of the
texts fail.

`at level 0.01`, [a link](page-1.5.md)

```sh
run --rate 0.05
```

<!-- speed table -->
| 3.14 | 2.7 |
<!-- /speed table -->
"""
RESULT = """| what | s | failed |
| --- | --- | --- |
| audit | 1.2461 | 0.1253 |
| score | 1.3 | 0.2 |

Second machine
| audit | 7.5 | 0.9 |
"""
CLAIM = {
    "in": "README.md",
    "says": "takes 1.25 s, and 12.5 % of the texts",
    "proof": "benchmarks/results/speed.md",
    "at": "| what | s | > | audit |",
}


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout with one page and one result."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "README.md").write_text(README)
    (tmp_path / CLAIM["proof"]).write_text(RESULT)
    return tmp_path


def entries() -> Any:
    return tomllib.loads(claims.LIST.read_text(encoding="utf-8"))


def test_committed_pages_and_list_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert claims.main([]) == 0
    assert capsys.readouterr().err == ""
    assert len(entries()["claim"]) > 100


def test_proofs_are_committed_files() -> None:
    if not (claims.ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    proofs = sorted({entry["proof"] for entry in entries()["claim"]})
    command = ["git", "ls-files", "--", *proofs]
    listed = subprocess.run(command, cwd=claims.ROOT, capture_output=True, text=True, check=True).stdout
    assert sorted(listed.splitlines()) == proofs


def test_accepts_a_claim_and_ignores_code_links_and_generated_tables(root: pathlib.Path) -> None:
    assert claims.problems(root, {"claim": [CLAIM]}) == []


def test_names_each_number_without_an_entry(root: pathlib.Path) -> None:
    wrong = claims.problems(root, {"claim": [{**CLAIM, "says": "takes 1.25 s"}]})
    assert len(wrong) == 1
    assert wrong[0].startswith("README.md: no entry for 12.5 in ")
    (root / "docs/page.md").write_text("It was 3 of 10,000 and 7 times 1e-4, in 5 rounds.")
    wrong = claims.problems(root, {"claim": [CLAIM]})
    assert [line.split(" in ")[0] for line in wrong] == [
        f"docs/page.md: no entry for {number}" for number in ("3", "10,000", "7", "1e-4")
    ]


def test_skips_generated_pages(root: pathlib.Path) -> None:
    for name in claims.GENERATED:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("2.5 s")
    assert claims.problems(root, {"claim": [CLAIM]}) == []


@pytest.mark.parametrize("kind", ["claim", "fixed"])
@pytest.mark.parametrize("says", ["takes 9.5 s", "texts fail", "run --rate 0.05"])
def test_names_an_entry_without_a_number_of_its_page(root: pathlib.Path, kind: str, says: str) -> None:
    entry = (
        {**CLAIM, "says": says} if kind == "claim" else {"in": "README.md", "says": [says], "why": "setting"}
    )
    wrong = claims.problems(root, {"claim": [CLAIM], kind: [*[CLAIM] * (kind == "claim"), entry]})
    assert wrong == [f"README.md: no number in the words {says!r}, or no such words"]


def test_names_an_entry_for_no_page(root: pathlib.Path) -> None:
    entry = {"in": "docs/gone.md", "says": "1.25", "why": "setting"}
    wrong = claims.problems(root, {"claim": [CLAIM], "fixed": [entry]})
    assert wrong == ["docs/gone.md: no number in the words '1.25', or no such words"]


def test_names_a_wrong_number(root: pathlib.Path) -> None:
    (root / "README.md").write_text(README.replace("1.25 s", "1.24 s"))
    wrong = claims.problems(root, {"claim": [{**CLAIM, "says": CLAIM["says"].replace("1.25", "1.24")}]})
    assert len(wrong) == 1
    assert wrong[0].endswith(f": 1.24 is not in {CLAIM['proof']} at {CLAIM['at']}")


def test_notices_a_new_result(root: pathlib.Path) -> None:
    (root / CLAIM["proof"]).write_text(RESULT.replace("0.1253", "0.1258"))
    wrong = claims.problems(root, {"claim": [CLAIM]})
    assert len(wrong) == 1
    assert ": 12.5 is not in " in wrong[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"at": "| audit |"}, "2 lines with '| audit |'"),
        ({"at": "| decode |"}, "no line with '| decode |'"),
        ({"at": "| score | @ failed"}, "1.25 is not in"),
        ({"at": "| score | @ passed"}, "'passed' is not in list"),
        ({"at": "Third machine > | audit |"}, "no line with 'Third machine'"),
        ({"proof": "benchmarks/results/gone.md"}, "No such file"),
        ({"at": "Second machine > | audit |"}, "1.25 is not in"),
    ],
)
def test_names_a_place_that_proves_nothing(root: pathlib.Path, changes: dict[str, str], reason: str) -> None:
    wrong = claims.problems(root, {"claim": [{**CLAIM, **changes}]})
    assert reason in wrong[0]


def test_names_a_path_through_a_number(root: pathlib.Path) -> None:
    (root / "speed.json").write_text('{"rows": [2.5]}')
    wrong = claims.problems(root, {"claim": [{**CLAIM, "proof": "speed.json", "at": "rows.0.x"}]})
    assert "speed.json at rows.0.x: " in wrong[0]


def test_reads_cells_of_tables(root: pathlib.Path) -> None:
    claim = {**CLAIM, "at": ["| what | s | > | audit | @ s", "| what | s | > | audit | @ failed"]}
    assert claims.problems(root, {"claim": [claim]}) == []
    wrong = claims.problems(root, {"claim": [{**claim, "at": claim["at"][:1]}]})
    assert len(wrong) == 1
    assert ": 12.5 is not in " in wrong[0]


def test_reads_paths_quotients_and_differences_in_json(root: pathlib.Path) -> None:
    (root / "README.md").write_text("2.5 times as fast, 0.15 s sooner, in 4.0 s")
    (root / "result.json").write_text('{"rows": [{"s": 0.25}, {"s": 0.1}], "all": [1, 4.02]}')
    places = {"2.5 times": "rows.0.s / rows.1.s", "0.15 s": "rows.0.s - rows.1.s", "4.0 s": "all"}
    claim = [
        {"in": "README.md", "says": says, "proof": "result.json", "at": at} for says, at in places.items()
    ]
    assert claims.problems(root, {"claim": claim}) == []
    wrong = claims.problems(root, {"claim": [*claim, {**claim[0], "at": "rows.2.s"}]})
    assert wrong == ["README.md: '2.5 times': result.json at rows.2.s: list index out of range"]


def test_refuses_an_unknown_reason(root: pathlib.Path) -> None:
    fixed = [{"in": "README.md", "says": ["1.25 s", "12.5 %"], "why": "guess"}]
    wrong = claims.problems(root, {"fixed": fixed})
    assert wrong == [
        "README.md: why 'guess', expected one of setting, definition, version, example, law or paper"
    ]


@pytest.mark.parametrize(
    ("value", "digits", "unit", "expected"),
    [
        ("0.945", "0.95", "", True),
        ("0.945", "0.94", "", True),
        ("0.9449", "0.95", "", False),
        ("17.41", "17", "s", True),
        ("17.51", "17", "s", False),
        ("10_000", "10,000", "", True),
        ("27016", "27,000", "", False),
        ("0.008291", "0.83", "%", True),
        ("0.008291", "0.83", "", False),
        ("98.3", "98.3", "%", True),
        ("1398", "1.4", "GB", True),
        ("1398", "1.4", "MB", False),
        ("2816064", "2.8", "million", True),
        ("5.2e-07", "5.2e-7", "", True),
        ("0.33.0", "0.33.0", "", True),
        ("0.33.1", "0.33.0", "", False),
    ],
)
def test_a_value_proves_what_it_rounds_to(value: str, digits: str, unit: str, expected: bool) -> None:
    assert claims.proves(value, digits, unit) is expected
