"""What was measured of search, as tables, aims and the method's words."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.figures import Table, spread, verdict_below
from benchmarks.questions import KINDS
from benchmarks.search import COLD, CONCURRENCY, ECHO, END_TO_END, HEALTH, ROUTER, SEARCHER, Searched

#: Milliseconds that the way from HTTP to a searcher and back may add to the search itself, at the median.
OVERHEAD_AIM = 5.0

_COMPARED = (END_TO_END, SEARCHER, "SQLite", "tantivy")

METHOD = """\
- Search: 200 queries of seven kinds, made from the packs' own words with a fixed seed, of two packs: the HTML of two
  Debian documentation packages through our extractor and packer. Finders are processes of their own. One finder after
  the other answers all queries, one query at a time, then eight; who begins changes from round to round. *From cold*,
  each query goes to all finders before the next one does, so that each finds processor and caches as the others left
  them: waking processes then costs more than their work. All who count found the same number of pages for each query,
  or the benchmark would have stopped.
- *end to end*: `GET /api/v1/search` of ten hits over kept connections to the web, which asks one of two searchers by
  RabbitMQ; the orchestrator runs. *RemoteFinder*: the same without HTTP. *Searcher*: ours, in one process, on the
  unpacked packs. *SQLite*: the same FTS5 expression, the ten best ids by the same bm25, and their rows; no count, no
  snippets. *tantivy*: the same text with the same weights, words and phrases, in one segment on disk; ten best, their
  stored fields, and snippets of the body. What it has no part in: a snippet from the description where that is
  better, marks of headings, pages named as the query, facets.
- *echo* answers with 6 kB at once, *GET /healthz* is HTTP and no search.
- What something adds is taken for each query within a round: shown is the median over the queries, and over the
  rounds the median with the least and the greatest. Medians of differences need not add up.
"""


def aims(searched: Searched) -> list[tuple[str, str, str, str]]:
    """Return the rows of the table of aims."""
    added = searched.more(END_TO_END, SEARCHER)
    what = "search over HTTP, broker and searcher, p50 above the search itself, ms"
    return [(what, f"< {OVERHEAD_AIM:g}", added.text(2), verdict_below(added.median, OVERHEAD_AIM))]


def tables(searched: Searched) -> Iterator[Table]:
    """Yield every table in reading order."""
    yield _finders(searched)
    yield _breakdown(searched)
    yield _kinds(searched)
    yield _cpu(searched)


def _finders(searched: Searched) -> Table:
    pages = ", ".join(f"{domain} {count} pages" for domain, count in searched.pages.items())
    rounds = len(searched.turns[END_TO_END][1])
    header = ["finder"]
    for size in CONCURRENCY:
        header += [f"p50 ms, {size} at once", "p99 ms", "queries/s"]
    rows = []
    for name in searched.turns:
        row = [name]
        for size in CONCURRENCY:
            row += [f"{searched.percentile(name, percent, concurrency=size):.2f}" for percent in (50, 99)]
            row += [searched.rate(name, size).text(0)]
        rows.append(tuple(row))
    return Table(f"{len(searched.asked)} queries in {rounds} rounds; {pages}", tuple(header), tuple(rows))


def _breakdown(searched: Searched) -> Table:
    columns = [_parts(searched, size) for size in (1, COLD)]
    names = (
        f"{SEARCHER}: the search itself",
        f"{ROUTER} adds to it",
        "- of that the broker: request and answer of 6 kB with an echo",
        f"{END_TO_END} adds to {ROUTER}",
        f"- of that HTTP: {HEALTH}",
        f"{END_TO_END} adds to {SEARCHER}",
        f"{END_TO_END} adds to {SEARCHER}, p90 of the queries",
    )
    header = ("part", "ms, one after the other", "ms, from cold")
    return Table("Where the time of one query goes, one at a time", header, tuple(zip(names, *columns, strict=True)))


def _parts(searched: Searched, size: int) -> list[str]:
    return [
        _median(searched, SEARCHER, size),
        searched.more(ROUTER, SEARCHER, size=size).text(2),
        _median(searched, ECHO, size),
        searched.more(END_TO_END, ROUTER, size=size).text(2),
        _median(searched, HEALTH, size),
        searched.more(END_TO_END, SEARCHER, size=size).text(2),
        searched.more(END_TO_END, SEARCHER, percent=90, size=size).text(2),
    ]


def _median(searched: Searched, name: str, size: int) -> str:
    return spread([1_000 * statistics.median(turn.seconds) for turn in searched.turns[name][size]]).text(2)


def _kinds(searched: Searched) -> Table:
    rows = []
    for kind in (kind for kind in KINDS if any(ask.kind == kind for ask in searched.asked)):
        own = [
            f"{searched.percentile(name, 50, kind=kind):.2f}" for name in (END_TO_END, SEARCHER, "SQLite", "tantivy")
        ]
        rows.append((kind, *own, searched.more(END_TO_END, SEARCHER, kind=kind).text(2)))
    header = ("kind of query", *(f"{name}, p50 ms" for name in _COMPARED), "added")
    return Table("By kind of query, one at a time", header, tuple(rows))


def _cpu(searched: Searched) -> Table:
    queries = sum(len(searched.asked) * len(turns) for size, turns in searched.turns[END_TO_END].items() if size > 1)
    groups = [name for name in searched.cpu if not name.endswith(" children")]
    spent = {name: searched.cpu[name] + searched.cpu[f"{name} children"] for name in groups}
    rows = [(name, f"{1_000 * seconds / queries:.2f}") for name, seconds in spent.items()]
    rows.append(("all", f"{1_000 * sum(spent.values()) / queries:.2f}"))
    return Table(f"CPU time by process, end to end, {CONCURRENCY[-1]} at once", ("process", "ms a query"), tuple(rows))
