"""Crawl a site with Scrapy, in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from app.crawl.urls import canonical_key
from app.private_services.service import tail, wait_until
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
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=home)
    try:
        exit_code, seconds = _wait(process.pid)
        process.returncode = exit_code
    finally:
        if process.returncode is None:  # After the time limit or an interrupt.
            process.kill()
            process.wait()
    if exit_code:
        raise BenchmarkError(f"Scrapy ended with {exit_code}:\n{tail(log)}")
    return seconds


def _wait(pid: int) -> tuple[int, float]:
    """Return the exit code of a child process, and its CPU seconds with children."""
    ended: list[tuple[int, float]] = []

    def has_ended() -> bool:
        ended_pid, status, resources = os.wait4(pid, os.WNOHANG)
        if ended_pid:
            ended.append((os.waitstatus_to_exitcode(status), resources.ru_utime + resources.ru_stime))
        return bool(ended_pid)

    if not wait_until(has_ended, TIMEOUT):
        raise BenchmarkError(f"Scrapy did not end within {TIMEOUT:g} s")
    return ended[0]
