"""The folder app/broker, copied under another name into a project that has nothing else of this one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from config.settings import ROOT
from tests.support.broker import Broker
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

SHOP = """
import sys

from celery import Celery
from rabbit.policies.delay_queues import DelayQueues
from rabbit.policies.registry import RetryPolicies
from rabbit.worker.install import install

mail = DelayQueues("shop", timeout_ms=100, retry_max=1)
policies = RetryPolicies({"mail": mail}, default=mail)
app = Celery("shop")
app.conf.task_queues = policies.work_queues()
app.conf.task_default_queue = "mail"
install(app, policies)


@app.task(name="shop.sell")
def sell() -> None:
    foreign = sorted(name for name in sys.modules if name.split(".")[0] in ("app", "config", "tasks"))
    raise KeyError(f"no such shelf; modules of the original project: {foreign}")


if __name__ == "__main__":
    sell.delay()
"""


def test_a_failing_task_of_another_project_is_retried_and_dead_lettered(broker_url: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "app" / "broker", project / "rabbit", ignore=shutil.ignore_patterns("__pycache__"))
    (project / "shop.py").write_text(SHOP)
    environment = {"CELERY_BROKER_URL": broker_url}
    with worker(
        environment, tmp_path / "worker.log", app="shop", queues=["mail"], options=["--loglevel=info"], folder=project
    ) as running:
        command = [sys.executable, "-m", "shop"]
        subprocess.run(command, cwd=project, env={**os.environ, **environment}, check=True, timeout=60)
        broker = Broker(broker_url)
        eventually(lambda: broker.depth("shop.dead") == 1, "the message is dead-lettered")
        assert "Retry 1 of 1 of shop.sell from mail in 0.1 s: KeyError" in running.log
    [dead] = broker.take("shop.dead")
    assert dead.headers["perennial-attempts"] == 2
    assert dead.headers["perennial-message"] == "'no such shelf; modules of the original project: []'"
