"""Tables, aims and method of the search benchmark."""

from __future__ import annotations

import statistics

from benchmarks.figures import FigureTable, MeasuredRow, at_most, spread
from benchmarks.modes import ALONE, AWAKE, CROWD, RESTED, Mode
from benchmarks.queries import KINDS
from benchmarks.search import ECHO, END_TO_END, HEALTH, PACK_SEARCHER, SEARCH_CLIENT, SearchFigures

#: Milliseconds that HTTP, broker and searcher may add to the search itself, at the median.
OVERHEAD_AIM = 5.0

_COMPARED = (END_TO_END, PACK_SEARCHER, "SQLite", "tantivy")

METHOD = """\
- Search: 200 queries of seven kinds, from the packs' own words, with a fixed seed. The two packs hold the HTML of two
  Debian documentation packages, extracted and packed by this project. Each contestant is a process of its own. One
  contestant after the other answers all queries; the order rotates from round to round. All contestants that count
  matching pages found the same number for each query, or the benchmark would have stopped.
- *One at a time*: the next query follows the reply to the one before. A contestant of one process is then always
  working. Of the search cluster's processes each one waits most of the time, and is woken several times per query. An
  idle processor goes to sleep, above all on a virtual machine, and a process that wakes it runs more slowly for a
  while. Two more modes show this. *Awake*: an idle-priority process (`SCHED_IDLE`) keeps each processor busy, so that
  what the cluster adds is its own work. *After a rest*: each contestant rests for 10 ms before each query, as with
  occasional visitors.
- *end to end*: `GET /api/v1/search` with ten hits, over persistent connections to the web, which queries one of two
  searchers over RabbitMQ; the orchestrator runs. *search client*: the same without HTTP. *PackSearcher*: the search
  itself, in one process, on the decompressed packs.
- *SQLite*: the same FTS5 expression, the ten best ids by the same bm25, and their rows; no count and no snippets.
  *tantivy*: the same text with the same weights, words and phrases, in one segment on disk; the ten best, their stored
  fields, and snippets of the body. It has no anchor texts, no other forms of words,
  and no pages with some of the words. It cuts no snippets from descriptions, marks no headings, promotes no titles and
  counts no facets.
- *echo* replies at once with 6 kB; *GET /healthz* is HTTP without a search.
- Added time is the difference per query within a round. Shown is the median over the queries; then the median over the
  rounds with the lowest and the highest. Medians of differences need not add up.
"""


def shown(figures: SearchFigures) -> MeasuredRow:
    """Return tables and aims of the queries."""
    figure = "search over HTTP, broker and searcher, p50 above the search itself, processors"
    aims = tuple(
        at_most(f"{figure} {state}, ms", OVERHEAD_AIM, figures.added(END_TO_END, PACK_SEARCHER, mode), digits=2)
        for state, mode in (("awake", AWAKE), ("as they are", ALONE))
    )
    tables = (_finders(figures), _breakdown(figures), _kinds(figures), _cpu(figures))
    return MeasuredRow(aims, tables, others=figures.others)


def _finders(figures: SearchFigures) -> FigureTable:
    pages = ", ".join(f"{domain} {count} pages" for domain, count in figures.pages.items())
    rounds = len(figures.turns[END_TO_END][ALONE])
    modes = (AWAKE, ALONE, CROWD)
    header = ["contestant", *(f"p{percent} ms, {mode.name}" for mode in modes for percent in (50, 99)), "queries/s"]
    rows = []
    for name in figures.turns:
        row = [f"{figures.percentile(name, percent, mode):.2f}" for mode in modes for percent in (50, 99)]
        rows.append((name, *row, figures.rate(name, CROWD).text(0)))
    return FigureTable(f"{len(figures.queries)} queries in {rounds} rounds; {pages}", tuple(header), tuple(rows))


def _breakdown(figures: SearchFigures) -> FigureTable:
    modes = (AWAKE, ALONE, RESTED)
    names = (
        f"{PACK_SEARCHER}: the search itself",
        f"{SEARCH_CLIENT} adds to it",
        "- of that the broker: request and reply of 6 kB with an echo",
        f"{END_TO_END} adds to {SEARCH_CLIENT}",
        f"- of that HTTP: {HEALTH}",
        f"{END_TO_END} adds to {PACK_SEARCHER}",
        f"{END_TO_END} adds to {PACK_SEARCHER}, p90 of the queries",
    )
    columns = [_parts(figures, mode) for mode in modes]
    header = ("part, ms", *(mode.name for mode in modes))
    return FigureTable("Where the time of one query goes", header, tuple(zip(names, *columns, strict=True)))


def _parts(figures: SearchFigures, mode: Mode) -> list[str]:
    return [
        _median(figures, PACK_SEARCHER, mode),
        figures.added(SEARCH_CLIENT, PACK_SEARCHER, mode).text(2),
        _median(figures, ECHO, mode),
        figures.added(END_TO_END, SEARCH_CLIENT, mode).text(2),
        _median(figures, HEALTH, mode),
        figures.added(END_TO_END, PACK_SEARCHER, mode).text(2),
        figures.added(END_TO_END, PACK_SEARCHER, mode, percent=90).text(2),
    ]


def _median(figures: SearchFigures, name: str, mode: Mode) -> str:
    return spread([1_000 * statistics.median(turn.seconds) for turn in figures.turns[name][mode]]).text(2)


def _kinds(figures: SearchFigures) -> FigureTable:
    rows = []
    for kind in (kind for kind in KINDS if any(query.kind == kind for query in figures.queries)):
        own = [f"{figures.percentile(name, 50, AWAKE, kind=kind):.2f}" for name in _COMPARED]
        rows.append((kind, *own, figures.added(END_TO_END, PACK_SEARCHER, AWAKE, kind=kind).text(2)))
    header = ("kind of query", *(f"{name}, p50 ms" for name in _COMPARED), "added")
    return FigureTable(f"By kind of query, {AWAKE.name}", header, tuple(rows))


def _cpu(figures: SearchFigures) -> FigureTable:
    queries = len(figures.queries) * len(figures.turns[END_TO_END][CROWD])
    groups = [name for name in figures.cpu if not name.endswith(" children")]
    spent = {name: figures.cpu[name] + figures.cpu[f"{name} children"] for name in groups}
    rows = [(name, f"{1_000 * seconds / queries:.2f}") for name, seconds in spent.items()]
    rows.append(("all", f"{1_000 * sum(spent.values()) / queries:.2f}"))
    return FigureTable(f"CPU time by process, end to end, {CROWD.name}", ("process", "ms a query"), tuple(rows))
