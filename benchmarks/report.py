"""The page of results: what was measured becomes tables, verdicts and caveats."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import search_tables
from benchmarks.enqueue import Enqueued
from benchmarks.figures import Spread, Table, ratios, spread, verdict, verdict_below
from benchmarks.kept import Section
from benchmarks.parked import Parked
from benchmarks.profile import Share
from benchmarks.runs import Run
from benchmarks.search import Searched

#: What is aimed at: times Scrapy's pages a second, by site.
CRAWL_AIMS = {"postgresql-doc-15": 2.0, "python3.11-doc": 6.0}
#: Times the documents a second of a bare loop of inserts that fills the same schema.
PACK_AIM = 0.7
#: Milliseconds within which half, and 99 of 100, calls of `delay()` return without confirms; times plain Celery's.
ENQUEUE_AIMS, ENQUEUE_RATIO = {50: 1.0, 99: 5.0}, 1.0
PEER = "Scrapy"
#: Share of the machine taken by others above which a run is called disturbed.
DISTURBED = 0.15

METHOD = """\
- Crawl: each round runs every contestant once on a site, one after the other; a ratio is taken within its round. Shown
  are medians with the least and the greatest run.
- Ours is the whole system: RabbitMQ and Redis of its own, the Procfile's `worker` with its task events, an empty store
  in a folder. The time goes from the post of one plain `index+crawl` message to the moment when the frontier has
  nothing open (looked at every 50 ms). Pages are the objects in the store. The worker runs before the clock starts.
- Scrapy: 16 requests at a time, no delay, robots.txt obeyed, text by XPath, links by `LinkExtractor`, one JSON line a
  page. The time goes from its first request to its last page; start and end of its process are left out.
- Both found the same set of canonical URLs in every run, or the benchmark would have stopped. `/` and `/index.html`
  are two of them.
- CPU is user and system time of all processes of a contestant: for us the worker with its pool, RabbitMQ and Redis.
  The web server (nginx, one process, no gzip) is left out for both.
- `HOST_DELAY=0` and `ALLOW_PRIVATE_HOSTS=127.0.0.0/8`; every other setting has its default. `packer`, `beat`, `web`
  and `flower` do not run: a crawl needs none of them.
- Enqueue: six processes take turns of 100 calls: `index.delay(url)` as a client calls it (the URL is checked and
  normalised, retry headers are added), `delay(url=, domain=)` of an application that is plain Celery, and kombu's
  `Producer.publish` of the same body on one channel; each without confirms and with them. All queues are quorum queues
  with the same arguments on one broker, emptied after each turn, when all that was sent must have arrived. A ratio is
  that of the two medians of one round.
- Parked: 100,000 messages go through the policy `delay_queues` as after their first failure, and through the publisher
  of the workers in batches of 500, into three delay queues (90, 100 and 110 s). All wait at once before the first is
  due. Memory is the resident memory of RabbitMQ's processes, before, with all waiting, and when the last is back and
  consumed. A message is late by the time between its delay's end, counted from the moment before its batch was
  published, and its arrival at a consumer of the work queue, which is also what keeps all of them apart by number.
"""

CAVEATS = """\
- Server and contestants share the machine, and the pages come over the loopback interface: a network would make both
  contestants wait, and the ratios smaller.
- Scrapy keeps its queue in memory and forgets it when it ends. What our crawl spends on messages that outlive any
  process, on deduplication between processes and on atomic writes is in its figures; Scrapy has no part in that.
- "Others" is the share of the machine that other programs took during a run. A run in which it is over 15 % is made
  again, once, and the less disturbed one counts. Where it is large all the same, wall times say
  little, and CPU seconds say more. We keep both cores busy and Scrapy one: company slows us more.
- On a virtual machine the same work has been seen to cost half as much CPU time again a minute later: compare within a
  run, not between runs.
- Thousands of parked messages fall due at the same moment here, and the last of them waits for all before it. In a
  delay queue that fills as failures happen, each comes back by itself.
- Resident memory counts what Erlang has not given back yet. Each kind of queue has a broker of its own.
- py-spy slows what it looks at, and counts a process that waits for a free core as running, so that system calls which
  wake another process (epoll, sending to Redis) look dearer than they are. Its shares are applied to the CPU time of
  runs without it.
"""


@dataclass(frozen=True, slots=True)
class Results:
    """All that was measured; what was not is empty."""

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    #: Runs in the order of their rounds, and the purposes of the worker's samples, by site.
    crawls: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    profiles: Mapping[str, Sequence[Share]] = field(default_factory=dict)
    pack: Mapping[str, Any] = field(default_factory=dict)
    enqueue: Enqueued | None = None
    parked: Sequence[Parked] = ()
    search: Searched | None = None


def best(runs: Sequence[Run]) -> str:
    """Return the contestant of ours with the most pages a second."""
    ours = {run.contestant for run in runs if run.contestant != PEER}
    return max(sorted(ours), key=lambda name: statistics.median(r.pages_per_second for r in of(runs, name)))


def of(runs: Sequence[Run], contestant: str) -> list[Run]:
    """Return one contestant's runs, in the order of the rounds."""
    return [run for run in runs if run.contestant == contestant]


def crawl_ratio(runs: Sequence[Run], contestant: str) -> Spread:
    """Return a contestant's pages a second as times Scrapy's of the same round."""
    return ratios(*([run.pages_per_second for run in of(runs, name)] for name in (contestant, PEER)))


def cpu_ratio(runs: Sequence[Run], contestant: str) -> Spread:
    """Return a contestant's CPU time a page as times Scrapy's of the same round."""
    return ratios(*([run.cpu_ms_per_page for run in of(runs, name)] for name in (contestant, PEER)))


# Tables


def aims_table(results: Results) -> Table:
    """Return what was aimed at and what was reached."""
    rows = []
    for site, runs in results.crawls.items():
        reached = crawl_ratio(runs, best(runs))
        aim = CRAWL_AIMS[site]
        what = f"pages a second, {site}, times Scrapy ({best(runs)})"
        rows.append((what, f"{aim:g}", reached.text(2), verdict(reached.median, aim)))
    if results.pack:
        ratio = results.pack["ratio_to"]["in memory"]
        what = "`pack_full` documents a second, times a bare loop of inserts"
        rows.append((what, f"{PACK_AIM:g}", f"{ratio:.2f}", verdict(ratio, PACK_AIM)))
    rows += _enqueue_aims(results.enqueue) if results.enqueue else []
    rows += [_parked_aim(parked) for parked in results.parked]
    rows += search_tables.aims(results.search) if results.search else []
    return Table("Aims", AIMS, tuple(rows))


AIMS = ("figure", "aim", "measured", "aim is")


def _enqueue_aims(enqueue: Enqueued) -> list[tuple[str, str, str, str]]:
    rows = []
    for percent, aim in ENQUEUE_AIMS.items():
        reached = enqueue.percentile("Perennial", percent)
        what = f"`delay()` without confirms, p{percent}, ms"
        rows.append((what, f"< {aim:g}", f"{reached:.2f}", verdict_below(reached, aim)))
    ratio = enqueue.ratio("Perennial", "Celery")
    what = "`delay()` without confirms, p50, times plain Celery's"
    rows.append((what, f"<= {ENQUEUE_RATIO:g}", ratio.text(2), verdict_below(ratio.median, ENQUEUE_RATIO)))
    return rows


def _parked_aim(parked: Parked) -> tuple[str, str, str, str]:
    back = f"{parked.count:,}" + (f", {parked.twice} of them twice" if parked.twice else "")
    return f"parked in {parked.queue_type} queues and come back", f"{parked.count:,}", back, "reached"


def crawl_table(site: str, runs: Sequence[Run]) -> Table:
    """Return the figures of every contestant on one site."""
    contestants = sorted({run.contestant for run in runs})
    header = ("contestant", "pages/s", "times Scrapy", "CPU ms/page", "times Scrapy", "others")
    title = f"{site}: {len(runs[0].pages)} pages; rounds: {len(of(runs, PEER))}"
    return Table(title, header, tuple(_crawl_row(runs, name) for name in contestants))


def _crawl_row(runs: Sequence[Run], name: str) -> tuple[str, ...]:
    own = of(runs, name)
    return (
        name,
        spread([run.pages_per_second for run in own]).text(0),
        "1" if name == PEER else crawl_ratio(runs, name).text(2),
        spread([run.cpu_ms_per_page for run in own]).text(1),
        "1" if name == PEER else cpu_ratio(runs, name).text(2),
        spread([100 * run.others for run in own]).text(0) + " %",
    )


def processes_table(crawls: Mapping[str, Sequence[Run]]) -> Table:
    """Return where our CPU time goes, by process, for the better of our contestants on each site."""
    own = {site: of(runs, best(runs)) for site, runs in crawls.items()}
    rows = [(title, *(f"{_cpu_ms(runs, groups):.2f}" for runs in own.values())) for title, groups in PROCESSES.items()]
    commands = (f"{statistics.median(_commands(run) for run in runs):.1f}" for runs in own.values())
    rows.append(("Redis commands a page, those in scripts included", *commands))
    header = ("CPU ms a page", *(f"{site} ({best(crawls[site])})" for site in own))
    return Table("CPU time by process", header, tuple(rows))


#: Titles of the groups of processes that a run tells apart.
PROCESSES = {
    "worker: parent": ("worker",),
    "worker: pool": ("worker children",),
    "RabbitMQ": ("RabbitMQ", "RabbitMQ children"),
    "Redis": ("Redis", "Redis children"),
}


def _cpu_ms(runs: Sequence[Run], groups: Sequence[str]) -> float:
    return statistics.median(1_000 * sum(run.cpu[group] for group in groups) / len(run.pages) for run in runs)


def _commands(run: Run) -> float:
    return sum(run.redis_commands.values()) / len(run.pages)


def profile_table(results: Results) -> Table:
    """Return what the worker's CPU time is for: share of its process's samples, and that share of its ms a page."""
    keys = list(dict.fromkeys((share.role, share.purpose) for shares in results.profiles.values() for share in shares))
    cells = {site: _purposes(results, site) for site in results.profiles}
    rows = [
        (f"{role}: {what}", *(cell for site in cells for cell in cells[site].get((role, what), ("-", "-"))))
        for role, what in sorted(keys, key=lambda key: key[0])
    ]
    header = ("worker", *(title for site in cells for title in (f"{site}: share", "ms/page")))
    return Table("What the worker's CPU time is for", header, tuple(rows))


def _purposes(results: Results, site: str) -> dict[tuple[str, str], tuple[str, str]]:
    runs = of(results.crawls[site], best(results.crawls[site]))
    spent = {"parent": _cpu_ms(runs, ["worker"]), "pool": _cpu_ms(runs, ["worker children"])}
    return {
        (each.role, each.purpose): (f"{each.share:.0%}", f"{each.share * spent[each.role]:.2f}")
        for each in results.profiles[site]
    }


def pack_table(pack: Mapping[str, Any]) -> Table:
    """Return the figures of a full pack beside its floors."""
    rates, to = pack["docs_per_second"], pack["ratio_to"]
    rows = [(name, f"{rate:.0f}", f"{to[name]:.2f}" if name in to else "") for name, rate in rates.items()]
    title = f"Packing {pack['documents']} documents, median of 3"
    return Table(title, ("contestant", "documents/s", "pack_full is times this"), tuple(rows))


def enqueue_table(enqueue: Enqueued) -> Table:
    """Return how long a call of each sender takes, beside plain Celery's with the same confirms."""
    rows = []
    for name in enqueue.seconds:
        peer = "Celery, confirmed" if name.endswith("confirmed") else "Celery"
        ratio = "1" if name == peer else enqueue.ratio(name, peer).text(2)
        rows.append((name, *(f"{enqueue.percentile(name, percent):.2f}" for percent in (50, 90, 99)), ratio))
    turns = next(iter(enqueue.seconds.values()))
    title = f"One call, {len(turns) * len(turns[0])} calls each in {len(turns)} rounds"
    return Table(title, ("sender", "p50 ms", "p90 ms", "p99 ms", "p50, times Celery's"), tuple(rows))


def parked_table(parked: Sequence[Parked]) -> Table:
    """Return what messages cost that wait in the broker, by kind of queue."""
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
    return Table(
        title, ("figure", *(each.queue_type for each in parked)), tuple((name, *cells) for name, cells in rows.items())
    )


def tables(results: Results) -> list[Table]:
    """Return every table that there are figures for, in reading order."""
    found = [crawl_table(site, runs) for site, runs in results.crawls.items()]
    found += [processes_table(results.crawls)] if results.crawls else []
    found += [profile_table(results)] if results.profiles else []
    found += [pack_table(results.pack)] if results.pack else []
    found += [enqueue_table(results.enqueue)] if results.enqueue else []
    found += [parked_table(results.parked)] if results.parked else []
    found += search_tables.tables(results.search) if results.search else []
    return [aims_table(results), *found]


def warnings(results: Results) -> list[str]:
    """Return what makes these figures unreliable: sites whose runs had company."""
    company = {site: max(run.others for run in runs) for site, runs in results.crawls.items()}
    alone = (each for each in (results.enqueue, results.search) if each)
    queues = [*(each.others for each in results.parked), *(each.others for each in alone)]
    crawls = [
        f"**Disturbed:** on {site} other programs took up to {others:.0%} of the machine during a run; pages a second"
        " below are then those of what was left, and the aim is not decided by them."
        for site, others in company.items()
        if others > DISTURBED
    ]
    if max(queues, default=0.0) <= DISTURBED:
        return crawls
    share = f"{max(queues):.0%} of the machine"
    return [*crawls, f"**Disturbed:** other programs took {share} meanwhile; ratios then say more than times."]


def section(row: str, results: Results) -> Section:
    """Return one row's results as they are shown and kept."""
    aims, *others = tables(results)
    return Section(
        row=row,
        date=results.date,
        machine=results.machine,
        versions=results.versions,
        aims=aims.rows,
        warnings=tuple(warnings(results)),
        tables=tuple(others),
    )


def page(sections: Sequence[Section]) -> str:
    """Return the results of all rows as a Markdown page."""
    aims = Table("Aims", AIMS, tuple(aim for each in sections for aim in each.aims))
    about = "Each row was measured in one run, on the day it names: compare within a row, not between rows."
    parts = ["# Benchmarks", "Written by `make bench`; do not edit.", about, aims.markdown()]
    parts += [part for each in sections for part in _parts(each)]
    return "\n\n".join([*parts, "## Method", METHOD + search_tables.METHOD, "## Caveats", CAVEATS.rstrip()]) + "\n"


def _parts(each: Section) -> list[str]:
    facts = [f"- {name}: {value}" for name, value in {"date": each.date, **each.machine}.items()]
    facts.append("- versions: " + ", ".join(f"{name} {value}" for name, value in each.versions.items()))
    return [f"## Row {each.row}", "\n".join(facts), *each.warnings, *(table.markdown() for table in each.tables)]
