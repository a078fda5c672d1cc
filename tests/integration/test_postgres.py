"""The private PostgreSQL: its socket is private, and it ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from config.settings import ROOT
from tests.support.kill import service_processes
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

ASKER = """
import sys
from tests.servers.postgres import postgres
with postgres() as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def folder_of(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def test_it_listens_on_no_port_others_may_not_enter_its_folder_and_nothing_of_it_outlives_its_parent() -> None:
    command = [sys.executable, "-c", ASKER]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asker:
        assert asker.stdout is not None
        url = asker.stdout.readline().strip()
        with psycopg.connect(url) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        assert folder_of(url).stat().st_mode & 0o777 == 0o700
        asker.send_signal(signal.SIGKILL)
    folder = folder_of(url)
    eventually(lambda: not service_processes("postgres", folder), "it has ended")
    eventually(lambda: not folder.exists(), "its folder is removed")
