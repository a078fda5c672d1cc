"""Another Celery application: its client and its worker after one call of `install`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from config.settings import ROOT
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

#: A client: sends a task and prints the states that it saw until the end.
CLIENT = """
import json, sys
from tests.support import shop
task, journal, times = sys.argv[1:]
result = shop.app.send_task(f"tests.support.shop.{task}", (journal, int(times)), queue="mail")
states = []
while (state := result.state) not in ("SUCCESS", "FAILURE"):
    states.append(state)
value = result.get(propagate=False)
print(json.dumps([sorted(set(states)), state, str(value), result.traceback]))
"""

UNKEPT = """
from celery import Celery
from kombu import Queue
from app.broker.worker.install import install
from app.broker.policies.registry import RetryPolicies
from app.broker.policies.x_death import XDeath

orders = XDeath("orders")
policies = RetryPolicies({"orders": orders}, default=orders)
app = Celery("mine", broker="amqp://127.0.0.1:1//")
app.conf.task_queues = [*policies.work_queues(), Queue("mail")]
install(app, policies)
"""


def ask(environment: dict[str, str], *args: object) -> Any:
    command = [sys.executable, "-c", CLIENT, *map(str, args)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_result_is_a_failure_only_when_the_message_is_dead(broker_url: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    environment = {"CELERY_BROKER_URL": broker_url, "CELERY_RESULT_BACKEND": results.as_uri()}
    options = ["--loglevel=info"]
    with worker(
        environment, tmp_path / "worker.log", app="tests.support.shop", queues=["mail"], options=options
    ) as running:
        before, state, value, trace = ask(environment, "fail", tmp_path / "dies", 9)
        assert ("RETRY" in before, state) == (True, "FAILURE"), running.log
        assert value == "'no such shelf'"
        assert "in fail" in trace
        assert (tmp_path / "dies").read_text().count("run ") == 3
        before, state, value, _ = ask(environment, "fail", tmp_path / "lives", 2)
        assert ("RETRY" in before, state, value) == (True, "SUCCESS", "done")
        assert (tmp_path / "lives").read_text().count("run ") == 3
        before, state, value, _ = ask(environment, "never_written", tmp_path / "unknown", 0)
        assert (before, state) == (["PENDING"], "FAILURE"), running.log
        assert value == "task 'tests.support.shop.never_written' is not registered"


def test_a_worker_does_not_start_with_a_queue_whose_rejected_messages_the_broker_drops(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(UNKEPT)
    command = [sys.executable, "-m", "celery", "-A", "mine", "worker", "--queues=mail", "--pool=solo"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "queue mail: its policy x_death rejects" in done.stderr
