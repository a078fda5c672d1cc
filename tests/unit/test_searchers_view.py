"""The tables of `perennial searchers` on a terminal, and missing copies as the trouble of a site."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from app.cli.searchers import show
from app.cluster.protocol import PackRoute, Routes, SearcherStatus
from app.operations.site_list import route_trouble

pytestmark = pytest.mark.unit

BUILT = "2026-11-21T10:04:00+00:00"


def shown(*routes: PackRoute, nodes: tuple[SearcherStatus, ...] = (), ready: bool = True, width: int = 80) -> list[str]:
    screen = StringIO()
    console = Console(file=screen, width=width, force_terminal=True, no_color=True, highlight=False)
    show(Routes(orchestrator="o", ready=ready, routes=routes, searchers=nodes), console)
    return Text.from_ansi(screen.getvalue()).plain.splitlines()


def pack(domain: str, *searchers: str, **fields: object) -> PackRoute:
    fields = {"sha256": "0", "generation": 12, "pages": 1_203, "built_at": BUILT, "size_mb": 40, **fields}
    newest = fields.pop("newest", len(searchers))
    return PackRoute(domain=domain, searchers=searchers, newest=newest, **fields)  # type: ignore[arg-type]


def test_the_table_of_searchers_and_missing_copies_fits_a_narrow_terminal() -> None:
    nodes = (
        SearcherStatus(searcher_id="3f2a9c1e-aaaa", free_space=3_120, capacity=4_000, age=0.42, packs=2),
        SearcherStatus(searcher_id="77", free_space=0, capacity=9, age=12.0, loading=("x",), leaving=True),
    )
    long = f"{'a' * 60}.example"
    lines = shown(
        pack(long, "3f2a9c1e-aaaa", "77", newest=1, missing=1, unplaced_reason="1 searcher for 2 copies"),
        pack("b.example", "3f2a9c1e-aaaa", missing=1, unplaced_reason="1 searcher for 2 copies"),
        pack("c.example", missing=2, unplaced_reason="too big"),
        nodes=nodes,
    )
    assert max(map(len, lines)) <= 80
    text = "\n".join(" ".join(line.split()) for line in lines)
    assert "3f2a9c1e-aaaa 3120 4000 2 0 0.4" in text
    assert "77 0 9 0 1 12.0 leaving" in text
    assert "b.example 1203 2026-11-21T10:04:00+00:00 12 40 1 1" in text
    assert "c.example 1203 2026-11-21T10:04:00+00:00 12 40 0 2" in text
    assert text.count("12 40 1 1") == 2
    assert "c.example: too big" in text
    assert text.count("1 searcher for 2 copies") == 1


def test_an_empty_or_new_system_says_what_comes_first() -> None:
    text = "\n".join(shown(ready=False))
    assert "has just started" in text
    assert "perennial up" in text
    assert "perennial index URL" in text


@pytest.mark.parametrize(
    ("missing", "text"), [(1, "a copy of its pack is missing"), (2, "2 copies of its pack are missing")]
)
def test_missing_copies_of_a_pack_are_trouble_of_its_site(missing: int, text: str) -> None:
    assert route_trouble(pack("a.gov", "one", missing=missing, unplaced_reason="no room")) == f"{text}: no room"
