"""`make demo-caa` as a user runs it: the archive ends as the database says, after a retry, a death and a replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from config.settings import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


@contextmanager
def demo(data: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the demo without a terminal, its output in a file, with settings about that are not for it."""
    misleading = {"BROKER_URL": "amqp://127.0.0.1:1//", "ART_RETRY_MS": "1", "MUSICBRAINZ_URL": "postgresql://nowhere/"}
    with out.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.demo_caa"],
            cwd=ROOT,
            env={**os.environ, **misleading, "PERENNIAL_DATA_DIR": str(data)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def descendants(process: subprocess.Popen[bytes], started: set[psutil.Process]) -> bool:
    """Add to `started` whatever runs below the demo; return whether the demo itself has ended."""
    with suppress(psutil.NoSuchProcess):
        started |= set(psutil.Process(process.pid).children(recursive=True))
    return process.poll() is not None


def left(data: Path, started: set[psutil.Process]) -> list[str]:
    """Return what still runs of those that were known, and of all that were started for a data folder."""
    found = [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    for each in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if str(data) in " ".join([*each.cmdline(), *each.environ().values()]):
                found.append(each)
    return [str(each) for each in found]


@pytest.mark.long
@pytest.mark.slow
def test_the_archive_ends_as_the_database_says_and_nothing_is_left_running(tmp_path: Path) -> None:
    data, out, started = tmp_path / "data", tmp_path / "out", set[psutil.Process]()
    with demo(data, out) as process:
        eventually(lambda: descendants(process, started), "the demo has ended", seconds=200, every=1)
        assert process.returncode == 0, out.read_text()
    assert len(started) > 5
    assert left(data, started) == []
    lines = out.read_text().splitlines()
    found = json.loads(lines[-1])
    assert found["equal"] is True
    assert [item["found"].partition(" ")[0] for item in found["items"].values()] == ["index.json", "nothing", "nothing"]
    assert (found["retried"], found["dead"], found["replayed"]) == (1, 1, 1)
    assert found["events"] == 2
    assert [line for line in lines if line.startswith("  event    ") and line.endswith("completed")] == [
        "  event    1: delete_image, completed",
        "  event    2: index, completed",
    ]
    move = r"b'201\nb2000000-0000-4000-8000-000000000001\na1000000-0000-4000-8000-000000000001\njpg\n'"
    assert f"  message  move  {move}" in lines
    assert all(line.isprintable() for line in lines)


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_cover_art_demo_leaves_nothing_running(tmp_path: Path) -> None:
    data, out, started = tmp_path / "data", tmp_path / "out", set[psutil.Process]()
    with demo(data, out) as process:
        eventually(
            lambda: descendants(process, started) or "1. Three releases" in out.read_text(),
            "it is at work",
            seconds=150,
        )
        assert process.poll() is None, out.read_text()
        assert len(left(data, started)) > 5
        process.kill()
        eventually(lambda: not left(data, started), "nothing runs any more", seconds=60)
