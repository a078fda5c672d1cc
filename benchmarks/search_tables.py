"""What was measured of search, as tables, aims and the method's words."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.figures import Table, spread, verdict_below
from benchmarks.modes import ALONE, AWAKE, CROWD, RESTED, Mode
from benchmarks.questions import KINDS
from benchmarks.search import ECHO, END_TO_END, HEALTH, ROUTER, SEARCHER, Searched

#: Milliseconds that the way from HTTP to a searcher and back may add to the search itself, at the median.
OVERHEAD_AIM = 5.0

_COMPARED = (END_TO_END, SEARCHER, "SQLite", "tantivy")

METHOD = """\
- Search: 200 queries of seven kinds, made from the packs' own words with a fixed seed, of two packs: the HTML of two
  Debian documentation packages through our extractor and packer. Finders are processes of their own. One finder after
  the other answers all queries; who begins changes from round to round. All who count found the same number of pages
  for each query, or the benchmark would have stopped.
- *One at a time*: a query is asked when the one before it is answered. A finder of one process is then always at work,
  while of the whole system's processes each one waits for most of the time, and is woken several times a query: where
  processors that have nothing to do fall asleep, most of all those of a virtual machine, what is woken runs at a
  fraction of its speed for a while. So there are two modes more. *Awake*: each processor is kept busy by a process that
  gives way to all others at once (`SCHED_IDLE`); what the way adds is then what it has to do. *After a rest*: each
  finder, also that of one process, rests for 10 ms before each query, as where somebody asks now and then.
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
    what = "search over HTTP, broker and searcher, p50 above the search itself, processors"
    return [_aim(searched, f"{what} awake, ms", AWAKE), _aim(searched, f"{what} as they are, ms", ALONE)]


def _aim(searched: Searched, what: str, mode: Mode) -> tuple[str, str, str, str]:
    added = searched.more(END_TO_END, SEARCHER, mode)
    return what, f"< {OVERHEAD_AIM:g}", added.text(2), verdict_below(added.median, OVERHEAD_AIM)


def tables(searched: Searched) -> Iterator[Table]:
    """Yield every table in reading order."""
    yield _finders(searched)
    yield _breakdown(searched)
    yield _kinds(searched)
    yield _cpu(searched)


def _finders(searched: Searched) -> Table:
    pages = ", ".join(f"{domain} {count} pages" for domain, count in searched.pages.items())
    rounds = len(searched.turns[END_TO_END][ALONE])
    modes = (AWAKE, ALONE, CROWD)
    header = ["finder", *(f"p{percent} ms, {mode.name}" for mode in modes for percent in (50, 99)), "queries/s"]
    rows = []
    for name in searched.turns:
        row = [f"{searched.percentile(name, percent, mode):.2f}" for mode in modes for percent in (50, 99)]
        rows.append((name, *row, searched.rate(name, CROWD).text(0)))
    return Table(f"{len(searched.asked)} queries in {rounds} rounds; {pages}", tuple(header), tuple(rows))


def _breakdown(searched: Searched) -> Table:
    modes = (AWAKE, ALONE, RESTED)
    names = (
        f"{SEARCHER}: the search itself",
        f"{ROUTER} adds to it",
        "- of that the broker: request and answer of 6 kB with an echo",
        f"{END_TO_END} adds to {ROUTER}",
        f"- of that HTTP: {HEALTH}",
        f"{END_TO_END} adds to {SEARCHER}",
        f"{END_TO_END} adds to {SEARCHER}, p90 of the queries",
    )
    columns = [_parts(searched, mode) for mode in modes]
    header = ("part, ms", *(mode.name for mode in modes))
    return Table("Where the time of one query goes", header, tuple(zip(names, *columns, strict=True)))


def _parts(searched: Searched, mode: Mode) -> list[str]:
    return [
        _median(searched, SEARCHER, mode),
        searched.more(ROUTER, SEARCHER, mode).text(2),
        _median(searched, ECHO, mode),
        searched.more(END_TO_END, ROUTER, mode).text(2),
        _median(searched, HEALTH, mode),
        searched.more(END_TO_END, SEARCHER, mode).text(2),
        searched.more(END_TO_END, SEARCHER, mode, percent=90).text(2),
    ]


def _median(searched: Searched, name: str, mode: Mode) -> str:
    return spread([1_000 * statistics.median(turn.seconds) for turn in searched.turns[name][mode]]).text(2)


def _kinds(searched: Searched) -> Table:
    rows = []
    for kind in (kind for kind in KINDS if any(ask.kind == kind for ask in searched.asked)):
        own = [f"{searched.percentile(name, 50, AWAKE, kind=kind):.2f}" for name in _COMPARED]
        rows.append((kind, *own, searched.more(END_TO_END, SEARCHER, AWAKE, kind=kind).text(2)))
    header = ("kind of query", *(f"{name}, p50 ms" for name in _COMPARED), "added")
    return Table(f"By kind of query, {AWAKE.name}", header, tuple(rows))


def _cpu(searched: Searched) -> Table:
    queries = len(searched.asked) * len(searched.turns[END_TO_END][CROWD])
    groups = [name for name in searched.cpu if not name.endswith(" children")]
    spent = {name: searched.cpu[name] + searched.cpu[f"{name} children"] for name in groups}
    rows = [(name, f"{1_000 * seconds / queries:.2f}") for name, seconds in spent.items()]
    rows.append(("all", f"{1_000 * sum(spent.values()) / queries:.2f}"))
    return Table(f"CPU time by process, end to end, {CROWD.name}", ("process", "ms a query"), tuple(rows))
