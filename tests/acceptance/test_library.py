"""The folder app/broker as the distribution `perennial-broker`, in projects that have nothing else of this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from app.private_services import Urls
from config.settings import ROOT
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.documents import blocks, commands, matches, read
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

GUIDE = "docs/guides/celery-retries.md"

#: What a task raises that fails, for a look at what its process has imported.
FOREIGN = """
def foreign():
    import sys
    return sorted(name for name in sys.modules if name.split(".")[0] in ("app", "config", "tasks"))
"""

DJANGO = {
    "proj/__init__.py": "from .celery import app as celery_app\n",
    "proj/settings.py": """
SECRET_KEY = "shop"
INSTALLED_APPS = ["sales"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_TASK_TIME_LIMIT = 60
""",
    "proj/celery.py": """
import os
from celery import Celery
from perennial_broker.policies.delay_queues import DelayQueues
from perennial_broker.worker.install import install

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
install(app, DelayQueues("proj", timeout_ms=100, retry_max=1))
app.autodiscover_tasks()
""",
    "sales/__init__.py": "",
    "sales/tasks.py": FOREIGN
    + """
from celery import shared_task
from django.conf import settings

@shared_task
def sell():
    raise KeyError(settings.SECRET_KEY, sell.app.conf.task_time_limit, foreign())
""",
}

FLASK = {
    "proj.py": FOREIGN
    + """
from celery import Celery, Task, shared_task
from flask import Flask, current_app
from perennial_broker.policies.delay_queues import DelayQueues
from perennial_broker.worker.install import install

def celery_init_app(app):
    class FlaskTask(Task):
        def __call__(self, *args, **kwargs):
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    install(celery_app, DelayQueues(app.name, timeout_ms=100, retry_max=1))
    celery_app.set_default()
    app.extensions["celery"] = celery_app

def create_app():
    app = Flask("proj")
    app.config.from_mapping(SECRET_KEY="shop", CELERY=dict(task_time_limit=60))
    celery_init_app(app)
    return app

celery = create_app().extensions["celery"]

@shared_task(name="sales.tasks.sell")
def sell():
    raise KeyError(current_app.config["SECRET_KEY"], sell.app.conf.task_time_limit, foreign())
"""
}


@dataclass(frozen=True)
class Project:
    """A folder of another project, with the installed distribution on its path and a broker of its own."""

    folder: Path
    environment: Mapping[str, str]

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def run(self, line: str, *, may_fail: bool = False) -> str:
        """Run a line in a shell, and return what it printed."""
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert may_fail or done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout + done.stderr * may_fail


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the distribution into a folder; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), str(ROOT / "app" / "broker")], check=True, timeout=120)
    return folder


@pytest.fixture
def project(installed: Path, services: Urls, tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "project"
    folder.mkdir()
    with own_vhost(services) as url:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield Project(folder, {"PYTHONPATH": f"{installed}:{folder}", "CELERY_BROKER_URL": url, "PATH": path})


def test_the_guide_leads_a_fresh_project_from_a_failing_task_to_its_replay(project: Project) -> None:
    shop, listing, _django, _flask, queues = (block.text for block in blocks(read(GUIDE), "python"))
    assert len([line for line in shop.splitlines() if line]) <= 10
    shop = re.sub(r"amqp://[^\"]*", project.environment["CELERY_BROKER_URL"], shop)
    project.write({"shop.py": shop, "listing.py": f"from shop import app\n{listing}\nassert dead.groups() == []"})
    before, _, _ = shop.partition("install(app")
    project.write({"queues.py": f"{before}{queues}\nassert len(app.conf.task_queues) == 2"})
    steps = [command for block in blocks(read(GUIDE), "console")[1:] for command in commands(block)]
    assert len(steps) == 7
    try:
        for step in steps:
            printed = ""

            def done() -> bool:
                nonlocal printed
                printed = project.run(step.line, may_fail=True)  # noqa: B023 - Called within this turn.
                return matches(step.output, printed)  # noqa: B023

            if step.line.startswith(("celery -A shop dead list", "grep")):
                eventually(done, f"{step.line} prints {step.output}", seconds=60)
            else:
                assert done(), f"{step.line}: {printed}"
        for program in ("listing.py", "queues.py"):
            project.run(f"python {program}")
    finally:
        for pid in project.folder.glob("*.pid"):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(int(pid.read_text())).terminate()


@pytest.mark.parametrize("files", [DJANGO, FLASK], ids=["django", "flask"])
def test_a_task_of_a_framework_runs_in_its_context_and_is_retried_and_dead_lettered(
    project: Project, files: Mapping[str, str]
) -> None:
    project.write(files)
    options = ["--loglevel=info"]
    log = project.folder / "worker.log"
    with worker(
        project.environment, log, app="proj", queues=["celery"], options=options, folder=project.folder
    ) as running:
        project.run("celery -A proj call sales.tasks.sell")
        broker = Broker(project.environment["CELERY_BROKER_URL"])
        eventually(lambda: broker.depth("proj.dead") == 1, "the message is dead-lettered", seconds=60)
        assert "Retry 1 of 1 of sales.tasks.sell from celery in 0.1 s: KeyError" in running.log
    [dead] = broker.take("proj.dead")
    assert (dead.headers["perennial-attempts"], dead.headers["perennial-message"]) == (2, "('shop', 60, [])")
