"""Words that programmers type, in pages and in queries: names with signs, compound names, options and versions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from tests.packs import page, write_pack

pytestmark = pytest.mark.unit

PAGES = [
    page("/cpp", "Templates", "Templates of C++ are found here"),
    page("/c", "Structures", "The language C has structures, no templates. C is small. C is old."),
    page("/csharp", "Generics", "C# and .NET have generics"),
    page("/network", "Sockets", "The net of example.net has sockets"),
    page("/amend", "Commit", "With --amend the last commit is replaced, with -m its message"),
    page("/sqlite", "Timeouts", "Call sqlite3_busy_timeout before all else"),
    page("/busy", "Other timeouts", "A busy server has a timeout. SQLite3 has none"),
    page("/admin", "Lists", "ModelAdmin.list_display names the columns"),
    page("/ordered", "Orders", "An OrderedDict keeps its order"),
    page("/3.11", "News", "New in version 3.11.2 is much"),
    page("/3.1", "Old news", "New in version 3.1 is 11 things"),
]


def found(folder: Path, text: str) -> list[str]:
    path = folder / "pack.sqlite"
    with closing(PackSearcher(path if path.exists() else write_pack(path, PAGES))) as searcher:
        return [hit.path for hit in searcher.search(parse(text)).hits]


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("C++", ["/cpp"]),
        ("c++ templates", ["/cpp", "/c"]),
        ("C#", ["/csharp"]),
        (".NET", ["/csharp"]),
        ("--amend", ["/amend"]),
        ("commit -m", ["/amend"]),
        ("sqlite3_busy_timeout", ["/sqlite"]),
        ("busy_timeout", ["/sqlite"]),
        ("ModelAdmin.list_display", ["/admin"]),
        ("list_display", ["/admin"]),
        ("OrderedDict", ["/ordered"]),
        ("ordered dict", ["/ordered"]),
        ("3.11.2", ["/3.11"]),
        ("3.11", ["/3.11"]),
        ("v3.11", ["/3.11"]),
    ],
)
def test_a_word_of_programmers_finds_the_page_that_has_it(tmp_path: Path, text: str, paths: list[str]) -> None:
    assert found(tmp_path, text)[: len(paths)] == paths


def test_a_name_with_signs_that_no_page_has_finds_the_name_without_them(tmp_path: Path) -> None:
    assert found(tmp_path, "sockets++") == ["/network"]


part = st.text("abcdefgxyz", min_size=3, max_size=6)
words = st.one_of(
    st.lists(part, min_size=2, max_size=3).map("_".join),
    st.lists(part, min_size=2, max_size=3).map(lambda parts: "".join(each.capitalize() for each in parts)),
    st.lists(part, min_size=1, max_size=3).map(lambda parts: "--" + "-".join(parts)),
    st.tuples(part, part, part).map(lambda parts: f"{parts[0].capitalize()}.{parts[1]}_{parts[2]}"),
    st.lists(st.integers(0, 30).map(str), min_size=2, max_size=3).map(".".join),
    part.map(lambda name: f"{name}++"),
    part.map(lambda name: f"{name.capitalize()}#"),
)


@settings(max_examples=15, deadline=None)
@given(words, st.sampled_from(["", ",", ".", "?", ")", "()"]))
def test_any_such_word_finds_the_page_that_has_it(
    tmp_path_factory: pytest.TempPathFactory, word: str, sign: str
) -> None:
    pack = tmp_path_factory.mktemp("pack") / "pack.sqlite"
    pages = [
        page("/it", "This one", f"Here is {word}{sign} of all names"),
        page("/other", "That one", "Here is no name"),
    ]
    with closing(PackSearcher(write_pack(pack, pages))) as searcher:
        assert [hit.path for hit in searcher.search(parse(word)).hits] == ["/it"]
