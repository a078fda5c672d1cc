"""The page of results: tables, verdicts, method and caveats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks import (
    crawl,
    enqueue,
    events,
    extract,
    fairness,
    growth,
    latency,
    pack,
    polite,
    search_tables,
    small_sites,
)
from benchmarks.figures import FigureTable, MeasuredRow, bullets
from benchmarks.names import run as names
from benchmarks.relevance import run as relevance
from benchmarks.stored_results import Section

#: Folder of the plots, beside the page.
PLOTS = "plots"
#: Share of the machine taken by other programs above which a run counts as disturbed.
DISTURBED = 0.15

METHOD = (
    crawl.METHOD
    + enqueue.METHOD
    + bullets(
        """The rows polite, fairness, latency, growth and small-sites run `worker`, `packer` and `beat`
        of the Procfile, RabbitMQ and Redis. Settings that are not named have their defaults. One thread of the
        benchmark serves the sites; its CPU time counts for none of these processes."""
    )
    + polite.METHOD
    + fairness.METHOD
    + latency.METHOD
    + growth.METHOD
    + small_sites.METHOD
    + events.METHOD
    + pack.METHOD
    + search_tables.METHOD
    + relevance.METHOD
    + names.METHOD
    + extract.METHOD
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


def section(
    row: str, measured: MeasuredRow, *, date: str, machine: Mapping[str, str], versions: Mapping[str, str]
) -> Section:
    """Return one row's results as they are shown and stored, with a warning where other programs ran meanwhile."""
    share = f"{measured.others:.0%} of the machine"
    warning = f"**Disturbed:** other programs took {share} meanwhile; ratios are more reliable than times."
    return Section(
        row=row,
        date=date,
        machine=machine,
        versions=versions,
        aims=measured.aims,
        warnings=(warning,) if measured.others > DISTURBED else (),
        tables=measured.tables,
        plots=measured.plots,
    )


def aims_table(*sections: Section) -> FigureTable:
    """Return the aims of the rows and how far each is reached."""
    aims = tuple(aim for each in sections for aim in each.aims)
    return FigureTable("Aims", ("figure", "aim", "measured", "aim is"), aims)


def page(sections: Sequence[Section]) -> str:
    """Return the results of all rows as a Markdown page."""
    about = "Each row was measured in one run, on the given date. Compare figures within a row, not between rows."
    parts = ["# Benchmarks", "Written by `make bench`; do not edit.", about, aims_table(*sections).markdown()]
    parts += [part for each in sections for part in _parts(each)]
    return "\n\n".join([*parts, "## Method", METHOD.rstrip(), "## Caveats", CAVEATS.rstrip()]) + "\n"


def _parts(each: Section) -> list[str]:
    facts = [f"- {name}: {value}" for name, value in {"date": each.date, **each.machine}.items()]
    # One span of code: a row with many sites would be too long a sentence.
    facts.append(f"- versions: `{', '.join(f'{name} {value}' for name, value in each.versions.items())}`")
    pictures = [f"![{plot.title}]({PLOTS}/{plot.name}.svg)" for plot in each.plots]
    tables = [table.markdown() for table in each.tables]
    return [f"## Row {each.row}", "\n".join(facts), *each.warnings, *tables, *pictures]
