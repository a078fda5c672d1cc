"""The prose check reports what the glossary forbids, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import check_file

pytestmark = pytest.mark.unit


def findings(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).write_text(text)
    return [str(finding).partition(f"{name}:")[2] for finding in check_file(folder / name)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Return whoever was told."""', ["1: 'whoever'", "1: 'told'"]),
        ("x = 1  # Nobody reads it.", ["1: 'Nobody'"]),
        ('log.info("The queue %s stands", queue)', ["1: 'stands'"]),
        ('raise ValueError(f"{name} is none of ours")', ["1: 'is none'", "1: 'of ours'"]),
        ("def told(): ...", ["1: identifier 'told'"]),
        ('"""Return ' + "one " * 26 + '."""', ["1: sentence of 27 words"]),
        ('"""Users who search, as `told` in code. It stands for itself."""', []),
        ('key = "told"', []),
    ],
)
def test_a_module_s_docstrings_comments_texts_and_names_are_checked(
    tmp_path: Path, source: str, expected: list[str]
) -> None:
    found = findings(tmp_path, "module.py", source)
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


def test_a_document_s_paragraphs_and_cells_are_checked_and_its_code_is_not(tmp_path: Path) -> None:
    text = "# Title\n\nSaid anew.\n\n```console\n$ told\n```\n\n| a | nobody |\n| --- | --- |\n"
    assert [line.split(":")[:2] for line in findings(tmp_path, "page.md", text)] == [
        ["3", " 'anew'"],
        ["9", " 'nobody'"],
    ]


def test_a_template_s_text_is_checked_and_its_markup_is_not(tmp_path: Path) -> None:
    assert len(findings(tmp_path, "page.html", '<p class="told">{{ told }} mend</p>')) == 1
