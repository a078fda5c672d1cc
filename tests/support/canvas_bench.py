"""A worker of `tests.support.canvas_app` with a result backend, and the journals that its tasks write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.broker.dead_letters.replay import ReplayOptions
from app.broker.dead_letters.sets import DeadSets
from app.broker.publishing import Publisher
from app.private_services import Urls
from config.settings import ROOT
from tests.support import canvas_app
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.waiting import eventually
from tests.support.worker import Worker, worker

#: Seconds within which a result has ended.
ENDED = 60.0


@dataclass
class Bench:
    """A running worker, and the folder of its journals."""

    url: str
    folder: Path
    environment: dict[str, str]
    broker: Broker
    worker: Worker

    def journal(self, name: str) -> str:
        """Return the path of a new journal."""
        path = self.folder / name
        assert not path.exists()
        return str(path)

    def replay(self, ident: str) -> None:
        """Replay the dead letter of a task, with a fresh budget."""
        publisher = Publisher(self.url)
        dead = DeadSets(canvas_app.policies, self.url, publisher)

        def found() -> list[str]:
            return [letter.id for letter in dead.letters() if letter.delivery.headers.get("id") == ident]

        [letter] = eventually(found, f"{ident} is dead-lettered; log:\n{self.worker.log[-3_000:]}", seconds=ENDED)
        dead.replay([letter], ReplayOptions(budget="fresh"))
        publisher.close()


def lines(journal: str) -> list[str]:
    """Return what a journal has, or an empty list."""
    path = Path(journal)
    return path.read_text().splitlines() if path.exists() else []


@contextmanager
def canvas_bench(services: Urls, folder: Path, *, queues: Sequence[str] = ("work",)) -> Iterator[Bench]:
    """Run the worker for the block, on a vhost of its own, and connect this process to it."""
    with own_vhost(services) as url:
        environment = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": services.redis_url, "PYTHONPATH": str(ROOT)}
        canvas_app.connect(url, services.redis_url)
        name, log, options = "tests.support.canvas_app", folder / "worker.log", ["--loglevel=INFO"]
        with worker(environment, log, app=name, queues=queues, concurrency=4, options=options) as running:
            yield Bench(url, folder, environment, Broker(url), running)
        canvas_app.app.pool.force_close_all()
