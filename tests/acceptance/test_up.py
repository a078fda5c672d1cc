"""`perennial up` and `down`: every process of the Procfile starts, answers and is gone again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import requests

from app.private_services.procfile import formation, left_out, procfile
from config.settings import ROOT, Settings
from tests.support.command import perennial
from tests.support.waiting import eventually
from tests.support.web import free_port

pytestmark = pytest.mark.acceptance


def answers(url: str, **options: object) -> int:
    """Return the status of a GET, or 0 without an answer."""
    try:
        return requests.get(url, timeout=5, **options).status_code  # type: ignore[arg-type]
    except requests.ConnectionError:
        return 0


@pytest.mark.slow
def test_the_whole_procfile_starts_serves_and_stops_warm(environment: dict[str, str], tmp_path: Path) -> None:
    web, flower = free_port(), free_port()
    chosen = {
        **environment,
        "WEB_ADDRESS": f"127.0.0.1:{web}",
        "FLOWER_ADDRESS": f"127.0.0.1:{flower}",
        "FLOWER_BASIC_AUTH": "me:secret",
    }
    log = tmp_path / "up.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "app.cli.main", "up"]
        up = subprocess.Popen(command, cwd=ROOT, env=chosen, stdout=output, stderr=output)
    try:
        eventually(lambda: answers(f"http://127.0.0.1:{web}/healthz") == 200, "the search page answers", seconds=60)
        eventually(lambda: answers(f"http://127.0.0.1:{flower}/") == 401, "Flower asks for a password", seconds=60)
        assert answers(f"http://127.0.0.1:{flower}/", auth=("me", "secret")) == 200
        eventually(lambda: log.read_text().count(" ready.") == 5, "all workers are ready", seconds=60)
        processes = psutil.Process(up.pid).children(recursive=True)
        password = urlsplit(environment["BROKER_URL"]).password
        assert password
        assert not [process.cmdline() for process in processes if password in " ".join(process.cmdline())]
        names = set(formation(procfile(), searchers=2))
        assert {name for name in names if f"{name} started" in log.read_text()} == names - left_out(Settings())

        again = perennial(chosen, "up")
        assert again.returncode == 1
        assert f"perennial up runs already, as process {up.pid}" in again.stderr

        assert "processes stopped" in perennial(chosen, "down").stdout
        assert up.wait(20) == 143
        assert not [process for process in processes if process.is_running()]
        # Worker, packer and orchestrator are Celery workers; searchers are not.
        assert log.read_text().count("Warm shutdown") == 3
        for name in ("worker", "packer", "orchestrator", "searcher.1", "searcher.2"):
            assert f"{name} stopped (rc=0)" in log.read_text()
    finally:
        if up.poll() is None:
            up.kill()


def test_down_without_up_is_no_error(environment: dict[str, str]) -> None:
    done = perennial(environment, "down")
    assert (done.returncode, done.stdout) == (0, "services stopped\n")
