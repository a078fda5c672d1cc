"""Runs Scrapy on a site in a process of its own and measures it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from app.crawl.urls import canonical_key
from app.services.service import tail, wait_until
from benchmarks.errors import BenchmarkError
from benchmarks.runs import Run
from benchmarks.sites import Served
from benchmarks.usage import usage

SCRAPY = Path(__file__).parent / "peers" / "scrapy_site.py"
#: Seconds after which a run is given up.
TIMEOUT = 300.0


def scrapy(site: str, served: Served, folder: Path) -> Run:
    """Crawl a served site with Scrapy; its files are below `folder`.

    `cpu` and `wall` are from the first request to the last page; what Python and Scrapy took to start and end is apart.
    """
    with tempfile.TemporaryDirectory(prefix="scrapy-", dir=folder) as name:
        home = Path(name)
        before = usage({"nginx": served.pid})
        whole = _run([sys.executable, str(SCRAPY), served.urls[site], f"{home}/items.jl", f"{home}/figures"], home)
        after = usage({"nginx": served.pid})
        figures = json.loads((home / "figures").read_text())
        with (home / "items.jl").open() as lines:
            pages = frozenset(canonical_key(json.loads(line)["url"]) for line in lines)
    nginx = sum(after.since(before).values())
    return Run(
        site=site,
        contestant="Scrapy",
        pages=pages,
        wall=figures["wall"],
        cpu={"scrapy": figures["cpu"]},
        apart={"nginx": nginx, "start and end": whole - figures["cpu"]},
        others=after.others(before, ours=whole + nginx),
    )


def _run(command: list[str], home: Path) -> float:
    """Run a command to its end; return the CPU seconds of its tree, as the kernel counts them for its parent."""
    log = home / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=home)
    try:
        exit_code, seconds = _wait(process.pid)
        process.returncode = exit_code
    finally:
        if process.returncode is None:  # Too slow, or we are told to end.
            process.kill()
            process.wait()
    if exit_code:
        raise BenchmarkError(f"Scrapy ended with {exit_code}:\n{tail(log)}")
    return seconds


def _wait(pid: int) -> tuple[int, float]:
    """Return the exit code of a child and the CPU seconds of its tree."""
    ended: list[tuple[int, float]] = []

    def has_ended() -> bool:
        found, status, spent = os.wait4(pid, os.WNOHANG)
        if found:
            ended.append((os.waitstatus_to_exitcode(status), spent.ru_utime + spent.ru_stime))
        return bool(found)

    if not wait_until(has_ended, TIMEOUT):
        raise BenchmarkError(f"Scrapy was not done after {TIMEOUT:g} s")
    return ended[0]
