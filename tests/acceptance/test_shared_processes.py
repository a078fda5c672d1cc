"""Messages that share a pool process: one that ends it, or fills its memory, spends its own budget and no other's."""

from __future__ import annotations

import itertools
import operator
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from celery import Celery

from app.broker.worker.shared_process import MAX_TOGETHER
from app.counters import (
    CRAWL_REQUESTS,
    CRAWLED_URLS,
    PACKS_BUILT,
    ROBOTS_REQUESTS,
    TASK_RUNS,
    read_counts,
)
from app.crawl.page import MOST_PAGES
from app.private_services import Urls
from tests.servers.site import Request, Site, Wire, late, page
from tests.support.broker import Broker
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.shop_worker import post, runs, shop_worker
from tests.support.system import running_system
from tests.support.waiting import eventually
from tests.support.worker import Worker

pytestmark = pytest.mark.acceptance

#: Messages that one process runs at the same time.
GROUP = MAX_TOGETHER
#: A tick may be in work whenever the counts are read.
CRAWL_TASKS = ("site.page", "site.index", "site.crawl")


@dataclass(frozen=True, slots=True)
class Bench:
    """A worker of one process, which is busy until `begin`: the messages that come before share the process then."""

    broker: Broker
    worker: Worker
    url: str
    release: Path
    #: Messages that the worker had received before.
    received: int

    @classmethod
    def holding(cls, url: str, worker: Worker, folder: Path) -> Bench:
        """Keep the process of a worker busy."""
        bench = cls(Broker(url), worker, url, folder / "release", worker.log.count("] received"))
        post(bench.broker, "mail", "hold", bench.release, timelimit=(60, None))
        return bench

    def post(self, journal: Path, *, limit: float = 60, **kwargs: str) -> None:
        post(self.broker, "mail", "shared", journal, timelimit=(limit, None), **kwargs)

    def begin(self, messages: int) -> None:
        """Free the process when the worker has taken all messages: a prefetched one may still be on its way."""
        eventually(lambda: self.worker.log.count("] received") == self.received + 1 + messages, "all wait")
        self.release.touch()


@contextmanager
def one_process(services: Urls, folder: Path) -> Iterator[tuple[str, Worker]]:
    """Run a worker of one process for the block; yield it with the URL of its vhost."""
    log = folder / "worker.log"
    with own_vhost(services) as url, shop_worker(url, log, ["mail"], "--task-events", concurrency=1) as running:
        yield url, running


@pytest.fixture
def bench(services: Urls, tmp_path: Path) -> Iterator[Bench]:
    with one_process(services, tmp_path) as (url, running):
        yield Bench.holding(url, running, tmp_path)


@pytest.fixture(scope="module")
def lasting(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Worker]]:
    with one_process(services, tmp_path_factory.mktemp("lasting")) as running:
        yield running


@pytest.mark.parametrize(
    ("outcome", "reason", "limit"),
    [("exit", "worker-lost", 60), ("hang", "time-limit", 3), ("memory", "out-of-memory", 60)],
)
def test_only_the_budget_of_the_message_moves_that_fails_alone(
    lasting: tuple[str, Worker], tmp_path: Path, outcome: str, reason: str, limit: float
) -> None:
    bench = Bench.holding(*lasting, tmp_path)
    poison, others = tmp_path / "poison", [tmp_path / f"other-{number}" for number in range(GROUP - 1)]
    for journal in others[:3]:
        bench.post(journal, limit=limit)
    bench.post(poison, limit=limit, outcome=outcome)
    for journal in others[3:]:
        bench.post(journal, limit=limit)
    bench.begin(GROUP)
    eventually(lambda: bench.broker.depth("shop.dead") == 1, "the poison is dead", seconds=90)
    eventually(lambda: all(runs(journal, "done") for journal in others), "the others are done")
    [dead] = bench.broker.take("shop.dead")
    assert (dead.headers["id"], dead.headers["perennial-reason"]) == ("poison", reason)
    # One run among the others, and those of its budget.
    assert (runs(poison), dead.headers["perennial-attempts"]) == (1 + 3, 3)
    assert all(runs(journal) <= 2 for journal in others)
    assert not [line for line in bench.worker.log.splitlines() if "[other" in line and "Retry" in line]


def test_the_others_of_a_terminated_message_run_again(bench: Bench, tmp_path: Path) -> None:
    doomed, late = tmp_path / "doomed", tmp_path / "late"
    bench.post(doomed, outcome="hang")
    bench.post(late, outcome="wait")
    bench.begin(2)
    with Celery(broker=bench.url) as control:
        eventually(lambda: runs(doomed) and runs(late), "both run")
        control.control.revoke(doomed.name, terminate=True, signal="SIGKILL")
    eventually(lambda: runs(late) == 2, "the other one runs again")
    Path(f"{late}.release").touch()
    eventually(lambda: runs(late, "done"), "it is done")
    bench.worker.leave()
    assert (runs(doomed), bench.broker.depth("mail"), bench.broker.depth("shop.dead")) == (1, 0, 0)


def test_every_page_is_stored_and_every_run_counted_though_pool_processes_are_killed_all_the_time(
    services: Urls, redis_url: str, tmp_path: Path
) -> None:
    # Texts that differ in more than digits: no budget stops the crawl.
    words = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=2)]
    leaves = [f"/{word}" for word in words]
    routes = {f"/{word}": late(0.02, page(word, f"All about {word} and {word * 3}")) for word in words}
    kills, begins = 0, threading.Event()

    def home(request: Request, wire: Wire) -> None:
        begins.wait(60)
        page("Home", links=leaves)(request, wire)

    with Site({"/": home, **routes}) as site, own_vhost(services) as url:
        settings = settings_for(tmp_path, url, redis_url, services.broker_api_url)
        environment = {
            **environment_of(settings),
            "RETRY_TIMEOUT_MS": "100",
            "HOST_CONCURRENCY": "32",
            "LOG_LEVEL": "DEBUG",
        }
        with running_system(environment, settings, tmp_path, concurrency=8) as system:
            system.post("index+crawl", url=site.at("/"))
            eventually(lambda: read_counts(redis_url)[ROBOTS_REQUESTS], "the request of robots.txt is counted")
            begins.set()
            eventually(lambda: len(site.paths()) > GROUP, "the crawl has begun")

            def is_done() -> bool:
                progress = system.progress(site.domain)
                return progress.indexed == len(leaves) + 1 and progress.open == 0

            while not is_done() and kills < 100:
                for process in system.worker.children()[:1]:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                        kills += 1
                threading.Event().wait(0.2)
            eventually(is_done, "every page is stored", seconds=90)
            assert system.packed(site.domain).pages == len(leaves) + 1
            progress = system.progress(site.domain)
            assert progress.dead == 0

            def runs_and_received() -> tuple[Counter[str], Counter[str]]:
                runs, log = Counter[str](), system.worker.log
                for (task, _, _, _), count in read_counts(redis_url)[TASK_RUNS].items():
                    runs[task] += round(count) if task in CRAWL_TASKS else 0
                received = Counter(re.findall(r"Task (site\.\w+)\[[^\]]+\] received", log))
                # Of several messages that have to run alone at the same time, all but one come again.
                received.subtract(re.findall(r"(site\.\w+)\[[^\]]+\] is set aside", log))
                return +runs, Counter({task: received[task] for task in CRAWL_TASKS})

            # Pages that are stored may be in a message that runs once more, since its process was killed.
            eventually(lambda: operator.eq(*runs_and_received()), "each message that came has run and is counted")
            runs, _ = runs_and_received()
            assert runs["site.page"] >= len(leaves) / MOST_PAGES
        # The worker has written what it counted last.
        counted = read_counts(redis_url)
        # A killed process loses what it counted within a second, and what runs again counts once.
        urls = sum(counted[CRAWLED_URLS].values())
        assert 0 < urls <= progress.done
        assert {queue for _, queue, _, _ in counted[TASK_RUNS]} >= {"site.index", "site.page", "site.pack"}
        assert counted[PACKS_BUILT] == {("full",): 1}
        assert counted[ROBOTS_REQUESTS].keys() == {("404",)}
        assert counted[CRAWL_REQUESTS].keys() <= {("200",), ("404",)}
        assert sum(counted[CRAWL_REQUESTS].values()) <= len(site.paths())
        requested = [path for path in site.paths() if path not in ("/robots.txt", "/sitemap.xml")]
        assert set(requested) == {"/", *leaves}
        assert kills
        # Beside each page: what the killed processes had begun, in messages of several pages.
        assert max(Counter(requested).values()) <= 1 + kills
