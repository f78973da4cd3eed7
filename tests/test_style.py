"""Prose and names are plain: every folder stays within the limits of `benchmarks/style.py`."""

from __future__ import annotations

import pathlib

import pytest

from benchmarks import style

FOLDERS = style.folders()


@pytest.mark.parametrize("folder", FOLDERS)
def test_prose_and_names_are_plain(folder: str) -> None:
    result = style.count(FOLDERS[folder])
    assert result.rate <= style.MAX_RATE, f"python -m benchmarks.style {folder.removesuffix('/*.py')}"
    assert result.vague_share <= style.MAX_VAGUE, sorted(set(result.vague))


def test_idioms_and_names_are_counted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(
        '"""What nobody reads.\n\nIs this fine? What about it?\n"""\n\n'
        'URL = "#nobody"  # where it stands\n'
        "def f(found, size):\n    '''Text.'''\n    for each in found:\n        text = 'of which'\n"
    )
    result = style.count_file(path)
    assert sorted((hit.line, hit.idiom) for hit in result.hits) == [
        (1, "What ... as a subject"),
        (1, "nobody"),
        (6, "stands, stood"),
        (6, "where for if"),
    ]
    assert (result.words, result.bindings, result.vague) == (13, 5, ("each", "found"))
    assert result.vague_share == 0.4
    assert not result.passes


def test_code_blocks_and_other_languages(tmp_path: pathlib.Path) -> None:
    (tmp_path / "page.md").write_text("One two\n\n```\nnobody\n```\n\nthree anew\n")
    (tmp_path / "op.cu").write_text("int nobody;  // likewise here\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.md").write_text("nobody\n")
    page, op = (style.count_file(tmp_path / name) for name in ("page.md", "op.cu"))
    assert (page.words, [(hit.line, hit.idiom) for hit in page.hits]) == (4, [(7, "anew")])
    assert (op.words, [(hit.line, hit.idiom) for hit in op.hits]) == (2, [(1, "begun, likewise")])
    assert style.count(style.files_below(tmp_path)) == op + page
