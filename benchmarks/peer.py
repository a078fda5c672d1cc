"""Crawl a site with Scrapy, in its own process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from app.crawl.urls import canonical_key
from app.machine import tail
from benchmarks.errors import BenchmarkError
from benchmarks.runs import CrawlRun
from benchmarks.sites import ServedSites
from benchmarks.usage import usage
from config.settings import Settings

SCRAPY = Path(__file__).parent / "peers" / "scrapy_site.py"
#: Requests to the host at the same time: as many as Perennial may have open by default.
CONCURRENCY = int(Settings.model_fields["host_concurrency"].default)
#: Seconds after which a run counts as failed.
TIMEOUT = 300.0


def scrapy(site: str, served: ServedSites, folder: Path) -> CrawlRun:
    """Crawl a served site with Scrapy, with its files below `folder`.

    `cpu` and `wall` count from the first request to the last page. Starting and ending the process is in `apart`.
    """
    with tempfile.TemporaryDirectory(prefix="scrapy-", dir=folder) as name:
        home = Path(name)
        before = usage({"nginx": served.pid})
        files = [f"{home}/items.jl", f"{home}/figures"]
        process_cpu = _run([sys.executable, str(SCRAPY), served.urls[site], *files, str(CONCURRENCY)], home)
        spent = usage({"nginx": served.pid}).since(before)
        figures = json.loads((home / "figures").read_text())
        with (home / "items.jl").open() as lines:
            pages = frozenset(canonical_key(json.loads(line)["url"]) for line in lines)
    nginx = spent.cpu["nginx"] + spent.cpu["nginx children"]
    return CrawlRun(
        site=site,
        contestant="Scrapy",
        pages=pages,
        wall=figures["wall"],
        cpu={"scrapy": figures["cpu"]},
        apart={"nginx": nginx, "start and end": process_cpu - figures["cpu"]},
        others=spent.others,
    )


def _run(command: list[str], home: Path) -> float:
    """Run a command to its end. Return its CPU seconds with children, as the kernel reports them to its parent."""
    log, before = home / "log", resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        with log.open("wb") as output:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=TIMEOUT, check=True, cwd=home
            )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"Scrapy did not end within {TIMEOUT:g} s") from error
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"Scrapy ended with {error.returncode}:\n{tail(log)}") from error
    # Of the processes that have ended: the services run on.
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
