"""The page of results: tables, verdicts, method and caveats."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import extract, fairness, growth, latency, polite, search_tables
from benchmarks.enqueue import EnqueueFigures
from benchmarks.figures import Aim, FigureTable, MeasuredRow, Spread, bullets, ratios, spread, verdict, verdict_below
from benchmarks.parked import ParkedFigures
from benchmarks.profile import Share
from benchmarks.relevance import tables as relevance_tables
from benchmarks.relevance.tables import Part
from benchmarks.runs import CrawlRun
from benchmarks.search import SearchFigures
from benchmarks.stored_results import Section

#: Aims by site: pages per second, as a multiple of Scrapy's, and CPU ms a page.
CRAWL_AIMS = {"postgresql-doc-15": 2.0, "python3.11-doc": 10.0}
CPU_AIMS = {"postgresql-doc-15": 4.0, "python3.11-doc": 7.0}
#: Aim: documents per second, as a multiple of a bare loop of inserts into the same schema.
PACK_AIM = 0.7
#: Aims for `delay()` without confirms: milliseconds by percentile, and p50 as a multiple of plain Celery's.
ENQUEUE_AIMS, ENQUEUE_RATIO = {50: 1.0, 99: 5.0}, 1.0
PEER = "Scrapy"
#: Folder of the plots, beside the page.
PLOTS = "plots"
#: Share of the machine taken by other programs above which a run counts as disturbed.
DISTURBED = 0.15

METHOD = """\
- Crawl: each round runs every contestant once on a site, one after the other. A ratio is taken within its round. Shown
  are medians with the lowest and the highest run.
- Perennial is the whole system: a private RabbitMQ and Redis, the Procfile's `worker` with its task events, an empty
  folder store. The time runs from the post of one `index+crawl` message until the frontier has no open message, checked
  every 50 ms. Pages are the objects in the store. The worker is started before the clock.
- Scrapy: as many requests to the host at the same time as `HOST_CONCURRENCY` allows by default (8), and no delay.
  It obeys robots.txt, finds text by XPath and links by `LinkExtractor`, and writes one JSON line per page. The time
  runs from its first request to its last page, without start and end of its process. Perennial, too, has at most
  `HOST_CONCURRENCY` requests to the host open.
- Both found the same set of canonical URLs in every run, or the benchmark would have stopped. `/` and `/index.html`
  are two of them.
- CPU is user and system time of all processes of a contestant. For Perennial these are the worker with its pool,
  RabbitMQ and Redis. The web server (nginx, one process, no gzip) counts for neither.
- `HOST_DELAY=0` and `ALLOW_PRIVATE_HOSTS=127.0.0.0/8`; all other settings have their defaults. `packer`, `beat`, `web`
  and `flower` do not run, because a crawl needs none of them.
- Enqueue: six processes take turns of 100 calls, three senders with and without confirms. `index.delay(url)` as a
  client calls it: the URL is checked and normalised, and retry headers are added. `delay(url=, domain=)` of a plain
  Celery application. kombu's `Producer.publish` of the same body on one channel.
- All queues of that row are quorum queues with the same arguments on one broker. They are emptied after each turn, when
  all messages must have arrived. A ratio is that of the two medians of one round.
- Parked: 100,000 messages pass the policy `delay_queues` as after their first failure. The workers' publisher sends
  them, in batches of 500, to three delay queues (90, 100 and 110 s). All wait at once before the first is due.
- Memory in that row is the resident memory of RabbitMQ's processes: before, with all messages waiting, and after the
  last one is consumed. A message's delay counts from the moment before its batch was published. It is late by the time
  from the end of that delay until a consumer of the work queue receives it.
"""

ROWS_METHOD = (
    bullets(
        """The rows polite, fairness, latency and growth run `worker`, `packer` and `beat` of the
        Procfile, RabbitMQ and Redis. Settings that are not named have their defaults. One thread of the
        benchmark serves the sites; its CPU time counts for none of these processes."""
    )
    + polite.METHOD
    + fairness.METHOD
    + latency.METHOD
    + growth.METHOD
)

CAVEATS = """\
- Server and contestants share the machine, and pages come over the loopback interface. A network would make both
  contestants wait, and bring the ratios closer to 1.
- Scrapy keeps its queue in memory and loses it when it ends. Perennial's figures include messages that survive any
  process, deduplication between processes, and atomic writes.
- "Others" is the share of the machine that other programs took during a run. A run with more than 15 % is repeated
  once, and the less disturbed of the two counts. With a large share, CPU seconds are more reliable than wall times.
  Perennial keeps both cores busy and Scrapy one, so other programs slow Perennial more.
- On a virtual machine the same work can cost half as much CPU time again a minute later. Compare within a run, not
  between runs.
- Thousands of parked messages fall due at the same moment here, and the last of them waits for all before it. In a
  delay queue that fills as failures happen, each comes back by itself.
- Resident memory includes memory that Erlang has not returned yet. Each kind of queue has a broker of its own.
- py-spy slows the process that it samples. It also counts a process that waits for a free core as running. System calls
  that wake another process (epoll, sending to Redis) therefore look more expensive than they are. Its shares are
  applied to the CPU time of runs without it.
"""


@dataclass(frozen=True, slots=True)
class Results:
    """The figures of a run; rows that were not measured are empty."""

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    #: Runs in the order of their rounds, and profiles of the worker, by site.
    crawls: Mapping[str, Sequence[CrawlRun]] = field(default_factory=dict)
    profiles: Mapping[str, Sequence[Share]] = field(default_factory=dict)
    pack: Mapping[str, Any] = field(default_factory=dict)
    enqueue: EnqueueFigures | None = None
    parked: Sequence[ParkedFigures] = ()
    search: SearchFigures | None = None
    relevance: Sequence[Part] = ()
    #: The rows polite, fairness, latency, growth and extract.
    measured: MeasuredRow | None = None


def best(runs: Sequence[CrawlRun]) -> str:
    """Return the Perennial contestant with the most pages per second."""
    names = {run.contestant for run in runs if run.contestant != PEER}
    return max(sorted(names), key=lambda name: statistics.median(r.pages_per_second for r in of(runs, name)))


def of(runs: Sequence[CrawlRun], contestant: str) -> list[CrawlRun]:
    """Return one contestant's runs, in the order of the rounds."""
    return [run for run in runs if run.contestant == contestant]


def crawl_ratio(runs: Sequence[CrawlRun], contestant: str) -> Spread:
    """Return a contestant's pages per second as a multiple of Scrapy's in the same round."""
    return ratios(*([run.pages_per_second for run in of(runs, name)] for name in (contestant, PEER)))


def cpu_ratio(runs: Sequence[CrawlRun], contestant: str) -> Spread:
    """Return a contestant's CPU time per page as a multiple of Scrapy's in the same round."""
    return ratios(*([run.cpu_ms_per_page for run in of(runs, name)] for name in (contestant, PEER)))


# Tables


def aims_table(results: Results) -> FigureTable:
    """Return the aims and how far each is reached."""
    rows = []
    for site, runs in results.crawls.items():
        reached = crawl_ratio(runs, best(runs))
        aim = CRAWL_AIMS[site]
        figure = f"pages a second, {site}, times Scrapy ({best(runs)})"
        rows.append((figure, f"{aim:g}", reached.text(2), verdict(reached.median, aim)))
        rows.append(_cpu_aim(site, of(runs, best(runs))))
    if results.pack:
        ratio = results.pack["ratio_to"]["in memory"]
        figure = "`pack_full` documents a second, times a bare loop of inserts"
        rows.append((figure, f"{PACK_AIM:g}", f"{ratio:.2f}", verdict(ratio, PACK_AIM)))
    rows += _enqueue_aims(results.enqueue) if results.enqueue else []
    rows += [_parked_aim(parked) for parked in results.parked]
    rows += search_tables.aims(results.search) if results.search else []
    rows += relevance_tables.aims(results.relevance)
    rows += results.measured.aims if results.measured else []
    return FigureTable("Aims", AIMS, tuple(rows))


AIMS = ("figure", "aim", "measured", "aim is")


def _cpu_aim(site: str, runs: Sequence[CrawlRun]) -> Aim:
    reached = spread([run.cpu_ms_per_page for run in runs])
    figure = f"CPU ms a page, {site} ({runs[0].contestant})"
    return figure, f"<= {CPU_AIMS[site]:g}", reached.text(1), verdict_below(reached.median, CPU_AIMS[site])


def _enqueue_aims(enqueue: EnqueueFigures) -> list[Aim]:
    rows = []
    for percent, aim in ENQUEUE_AIMS.items():
        reached = enqueue.percentile("Perennial", percent)
        figure = f"`delay()` without confirms, p{percent}, ms"
        rows.append((figure, f"< {aim:g}", f"{reached:.2f}", verdict_below(reached, aim)))
    ratio = enqueue.ratio("Perennial", "Celery")
    figure = "`delay()` without confirms, p50, times plain Celery's"
    rows.append((figure, f"<= {ENQUEUE_RATIO:g}", ratio.text(2), verdict_below(ratio.median, ENQUEUE_RATIO)))
    return rows


def _parked_aim(parked: ParkedFigures) -> Aim:
    back = f"{parked.count:,}" + (f", {parked.twice} of them twice" if parked.twice else "")
    return f"parked in {parked.queue_type} queues and come back", f"{parked.count:,}", back, "reached"


def crawl_table(site: str, runs: Sequence[CrawlRun]) -> FigureTable:
    """Return the figures of every contestant on one site."""
    contestants = sorted({run.contestant for run in runs})
    header = ("contestant", "pages/s", "times Scrapy", "CPU ms/page", "times Scrapy", "others")
    title = f"{site}: {len(runs[0].pages)} pages; rounds: {len(of(runs, PEER))}"
    return FigureTable(title, header, tuple(_crawl_row(runs, name) for name in contestants))


def _crawl_row(runs: Sequence[CrawlRun], name: str) -> tuple[str, ...]:
    own = of(runs, name)
    return (
        name,
        spread([run.pages_per_second for run in own]).text(0),
        "1" if name == PEER else crawl_ratio(runs, name).text(2),
        spread([run.cpu_ms_per_page for run in own]).text(1),
        "1" if name == PEER else cpu_ratio(runs, name).text(2),
        spread([100 * run.others for run in own]).text(0) + " %",
    )


def processes_table(crawls: Mapping[str, Sequence[CrawlRun]]) -> FigureTable:
    """Return CPU time by process, for the best Perennial contestant on each site."""
    own = {site: of(runs, best(runs)) for site, runs in crawls.items()}
    rows = [(title, *(f"{_cpu_ms(runs, groups):.2f}" for runs in own.values())) for title, groups in PROCESSES.items()]
    commands = (f"{statistics.median(_commands(run) for run in runs):.1f}" for runs in own.values())
    rows.append(("Redis commands a page, those in scripts included", *commands))
    header = ("CPU ms a page", *(f"{site} ({best(crawls[site])})" for site in own))
    return FigureTable("CPU time by process", header, tuple(rows))


#: Titles of the groups of processes that a run measures.
PROCESSES = {
    "worker: parent": ("worker",),
    "worker: pool": ("worker children",),
    "RabbitMQ": ("RabbitMQ", "RabbitMQ children"),
    "Redis": ("Redis", "Redis children"),
}


def _cpu_ms(runs: Sequence[CrawlRun], groups: Sequence[str]) -> float:
    return statistics.median(1_000 * sum(run.cpu[group] for group in groups) / len(run.pages) for run in runs)


def _commands(run: CrawlRun) -> float:
    return sum(run.redis_commands.values()) / len(run.pages)


def profile_table(results: Results) -> FigureTable:
    """Return the worker's CPU time by purpose: share of its process's samples, and that share of its ms per page."""
    keys = list(dict.fromkeys((share.role, share.purpose) for shares in results.profiles.values() for share in shares))
    cells = {site: _purposes(results, site) for site in results.profiles}
    rows = [
        (f"{role}: {figure}", *(cell for site in cells for cell in cells[site].get((role, figure), ("-", "-"))))
        for role, figure in sorted(keys, key=lambda key: key[0])
    ]
    header = ("worker", *(title for site in cells for title in (f"{site}: share", "ms/page")))
    return FigureTable("What the worker's CPU time is for", header, tuple(rows))


def _purposes(results: Results, site: str) -> dict[tuple[str, str], tuple[str, str]]:
    runs = of(results.crawls[site], best(results.crawls[site]))
    spent = {"parent": _cpu_ms(runs, ["worker"]), "pool": _cpu_ms(runs, ["worker children"])}
    return {
        (each.role, each.purpose): (f"{each.share:.0%}", f"{each.share * spent[each.role]:.2f}")
        for each in results.profiles[site]
    }


def pack_table(pack: Mapping[str, Any]) -> FigureTable:
    """Return the figures of a full pack beside the bare loops."""
    rates, to = pack["docs_per_second"], pack["ratio_to"]
    rows = [(name, f"{rate:.0f}", f"{to[name]:.2f}" if name in to else "") for name, rate in rates.items()]
    title = f"Packing {pack['documents']} documents, median of 3"
    return FigureTable(title, ("contestant", "documents/s", "pack_full is times this"), tuple(rows))


def enqueue_table(enqueue: EnqueueFigures) -> FigureTable:
    """Return the time of one call by sender, compared with plain Celery with the same confirms."""
    rows = []
    for name in enqueue.seconds:
        peer = "Celery, confirmed" if name.endswith("confirmed") else "Celery"
        ratio = "1" if name == peer else enqueue.ratio(name, peer).text(2)
        rows.append((name, *(f"{enqueue.percentile(name, percent):.2f}" for percent in (50, 90, 99)), ratio))
    turns = next(iter(enqueue.seconds.values()))
    title = f"One call, {len(turns) * len(turns[0])} calls each in {len(turns)} rounds"
    return FigureTable(title, ("sender", "p50 ms", "p90 ms", "p99 ms", "p50, times Celery's"), tuple(rows))


def parked_table(parked: Sequence[ParkedFigures]) -> FigureTable:
    """Return the cost of waiting messages, by queue type."""
    rows = {
        "seconds to park them": [f"{each.parking:.1f}" for each in parked],
        "messages parked a second": [f"{each.count / each.parking:,.0f}" for each in parked],
        "MB of memory before": [f"{each.memory[0] / 1e6:.0f}" for each in parked],
        "MB with all parked": [f"{each.memory[1] / 1e6:.0f}" for each in parked],
        "MB after": [f"{each.memory[2] / 1e6:.0f}" for each in parked],
        "bytes of memory a message": [f"{each.bytes_each:,.0f}" for each in parked],
        "come back": [f"{each.count:,}" for each in parked],
        "come back twice": [str(each.twice) for each in parked],
        "seconds late, median": [f"{each.late[0]:.1f}" for each in parked],
        "seconds late, the last one": [f"{each.late[1]:.1f}" for each in parked],
    }
    title = f"{parked[0].count:,} messages in delay queues at once"
    return FigureTable(
        title, ("figure", *(each.queue_type for each in parked)), tuple((name, *cells) for name, cells in rows.items())
    )


def tables(results: Results) -> list[FigureTable]:
    """Return the tables of all measured rows, in reading order."""
    measured = [crawl_table(site, runs) for site, runs in results.crawls.items()]
    measured += [processes_table(results.crawls)] if results.crawls else []
    measured += [profile_table(results)] if results.profiles else []
    measured += [pack_table(results.pack)] if results.pack else []
    measured += [enqueue_table(results.enqueue)] if results.enqueue else []
    measured += [parked_table(results.parked)] if results.parked else []
    measured += search_tables.tables(results.search) if results.search else []
    measured += relevance_tables.tables(results.relevance)
    measured += results.measured.tables if results.measured else []
    return [aims_table(results), *measured]


def warnings(results: Results) -> list[str]:
    """Return why figures are unreliable: other programs that ran during the measurement."""
    others_by_site = {site: max(run.others for run in runs) for site, runs in results.crawls.items()}
    other_rows = (*results.parked, *(each for each in (results.enqueue, results.search, results.measured) if each))
    queues = [each.others for each in other_rows]
    crawls = [
        f"**Disturbed:** on {site} other programs took up to {others:.0%} of the machine during a run. Its pages per"
        " second do not decide the aim."
        for site, others in others_by_site.items()
        if others > DISTURBED
    ]
    if max(queues, default=0.0) <= DISTURBED:
        return crawls
    share = f"{max(queues):.0%} of the machine"
    return [*crawls, f"**Disturbed:** other programs took {share} meanwhile; ratios are more reliable than times."]


def section(row: str, results: Results) -> Section:
    """Return one row's results as they are shown and stored."""
    aims, *others = tables(results)
    return Section(
        row=row,
        date=results.date,
        machine=results.machine,
        versions=results.versions,
        aims=aims.rows,
        warnings=tuple(warnings(results)),
        tables=tuple(others),
        plots=results.measured.plots if results.measured else (),
    )


def page(sections: Sequence[Section]) -> str:
    """Return the results of all rows as a Markdown page."""
    aims = FigureTable("Aims", AIMS, tuple(aim for each in sections for aim in each.aims))
    about = "Each row was measured in one run, on the given date. Compare figures within a row, not between rows."
    parts = ["# Benchmarks", "Written by `make bench`; do not edit.", about, aims.markdown()]
    parts += [part for each in sections for part in _parts(each)]
    method = METHOD + ROWS_METHOD + search_tables.METHOD + relevance_tables.METHOD + extract.METHOD
    return "\n\n".join([*parts, "## Method", method.rstrip(), "## Caveats", CAVEATS.rstrip()]) + "\n"


def _parts(each: Section) -> list[str]:
    facts = [f"- {name}: {value}" for name, value in {"date": each.date, **each.machine}.items()]
    facts.append("- versions: " + ", ".join(f"`{name} {value}`" for name, value in each.versions.items()))
    pictures = [f"![{plot.title}]({PLOTS}/{plot.name}.svg)" for plot in each.plots]
    tables = [table.markdown() for table in each.tables]
    return [f"## Row {each.row}", "\n".join(facts), *each.warnings, *tables, *pictures]
