"""The page of results: what was measured becomes tables, verdicts and caveats."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Spread, Table, ratios, spread, verdict
from benchmarks.profile import Share
from benchmarks.runs import Run

#: What is aimed at: times Scrapy's pages a second, by site.
CRAWL_AIMS = {"postgresql-doc-15": 2.0, "python3.11-doc": 6.0}
#: Times the documents a second of a bare loop of inserts that fills the same schema.
PACK_AIM = 0.7
PEER = "Scrapy"
#: Share of the machine taken by others above which a run is called disturbed.
DISTURBED = 0.15

METHOD = """\
- Each round runs every contestant once on a site, one after the other; a ratio is taken within its round. Shown are
  medians with the least and the greatest run.
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
    return Table("Aims", ("figure", "aim", "measured", "aim is"), tuple(rows))


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


def tables(results: Results) -> list[Table]:
    """Return every table that there are figures for, in reading order."""
    crawls = [crawl_table(site, runs) for site, runs in results.crawls.items()]
    crawls += [processes_table(results.crawls)] if results.crawls else []
    crawls += [profile_table(results)] if results.profiles else []
    return [aims_table(results), *crawls, *([pack_table(results.pack)] if results.pack else [])]


def warnings(results: Results) -> list[str]:
    """Return what makes these figures unreliable: sites whose runs had company."""
    company = {site: max(run.others for run in runs) for site, runs in results.crawls.items()}
    return [
        f"**Disturbed:** on {site} other programs took up to {others:.0%} of the machine during a run; pages a second"
        " below are then those of what was left, and the aim is not decided by them."
        for site, others in company.items()
        if others > DISTURBED
    ]


def page(results: Results) -> str:
    """Return the results as a Markdown page."""
    facts = [f"- {name}: {value}" for name, value in {"date": results.date, **results.machine}.items()]
    facts.append("- versions: " + ", ".join(f"{name} {value}" for name, value in results.versions.items()))
    parts = ["# Benchmarks", "Written by `make bench`; do not edit.", "\n".join(facts)]
    parts += warnings(results)
    parts += [table.markdown() for table in tables(results)]
    return "\n\n".join([*parts, "## Method", METHOD, "## Caveats", CAVEATS.rstrip()]) + "\n"
