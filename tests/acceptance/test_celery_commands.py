"""Celery's own commands on this application, as the documents have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from config.settings import ROOT, Settings
from tests.support.documents import blocks, matches, read, table
from tests.support.waiting import eventually
from tests.support.worker import start_module

pytestmark = pytest.mark.acceptance

#: Runs commands in one process, since most of each is imports; prints what each printed or raised.
RUN = """
import json, sys
from click.testing import CliRunner
from celery.bin.celery import celery
printed = {}
for line in json.load(sys.stdin):
    result = CliRunner().invoke(celery, ["-A", "app", *line.split()], input="exit\\n")
    printed[line] = f"{result.output}{result.exception}"
json.dump(printed, sys.stdout)
"""

#: Command -> what it prints, as elsewhere.
AS_ELSEWHERE = {
    "status": "1 node online",
    "inspect registered": "site.pack_full",
    "control pool_grow 1": "pool will grow",
    "control add_consumer site.page": "add consumer site.page",
    "control cancel_consumer site.page": "no longer consuming from site.page",
    "report": "software -> celery",
    "amqp": "connected",
    "upgrade settings config/celeryconfig.py": "Does not seem to require any changes",
}


def python(environment: dict[str, str], *command: str, given: str) -> str:
    """Run Python as an operator does in the checkout, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_command_of_celery_prints_what_the_documents_say(
    settings: Settings, environment: dict[str, str], tmp_path: Path
) -> None:
    differing = table(read("docs/reference/commands.md"), "## Celery's commands")
    rows = AS_ELSEWHERE | {row[0].strip("`"): row[1].strip("`") for row in differing}
    with started_by_name(environment, tmp_path):
        commands = {line: line.replace("BROKER", settings.broker) for line in rows}
        results = json.loads(python(environment, "-c", RUN, given=json.dumps(list(commands.values()))))
        printed = {line: results[command] for line, command in commands.items()}
        shell, *_ = (block.text for block in blocks(read("docs/guides/publish.md"), "console") if ">>> " in block.text)
        typed = [line.removeprefix(">>> ") for line in shell.splitlines() if line.startswith(">>> ")]
        said = python(environment, "-m", "celery", "-A", "app", "shell", "--python", given="\n".join(typed))
    assert len(rows) > 10
    assert {line: text for line, text in rows.items() if text not in printed[line]} == {}, printed
    assert urlsplit(settings.broker).password not in printed["report"]
    answers = [line.removeprefix(">>> ") for line in said.splitlines() if line.startswith(">>> ")]
    expected = [line for line in shell.splitlines()[1:] if not line.startswith(">>> ")]
    assert all(matches(*pair) for pair in zip(expected, answers, strict=False)), said


@contextmanager
def started_by_name(environment: dict[str, str], folder: Path) -> Iterator[None]:
    """Start a worker for the block by `multi`, dump its events, and stop it by its name."""
    files = [f"--pidfile={folder}/%n.pid", f"--logfile={folder}/%n.log"]
    log, multi = folder / "one.log", ["-m", "celery", "-A", "app", "multi"]
    dump = start_module(environment, folder / "dump.log", "celery", "-A", "app", "events", "--dump")
    python(environment, *multi, "start", "one", *files, "--queues=site.pack", "--loglevel=INFO", given="")
    try:
        eventually(lambda: log.exists() and " ready." in log.read_text(), "the worker is ready", seconds=60)
        eventually(lambda: "one@" in dump.log and "heartbeat" in dump.log, f"its events: {dump.log}", seconds=60)
        yield
    finally:
        python(environment, *multi, "stopwait", "one", *files, given="")
        dump.process.terminate()
        dump.process.wait(60)
    assert not (folder / "one.pid").exists()
