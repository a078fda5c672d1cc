"""The demo from beginning to end: crawl, pack, look at the dead set, repair, replay, search."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app import services
from app.broker.dead_letters import DeadLetter, DeadSet
from app.broker.publishing import get_publisher
from app.cluster.client.cluster import ClusterSearchClient
from app.envelopes import site_message
from app.errors import DemoFailed
from app.topology.policies import site_policy
from demo.answers import Answer, holders, results_url, search
from demo.plan import Plan
from demo.report import Report
from demo.screen import Screen
from demo.server import DemoSite
from demo.supervisor import Supervisor
from demo.watch import Snapshot, Watch
from demo.witness import Witness

#: Seconds between two looks, and seconds without any change after which the demo gives up.
_PAUSE, _PATIENCE = 0.2, 120.0
#: Seconds that the services may take: they may have to be installed first.
_INSTALLATION = 900.0
_HTTP_TIMEOUT = 5.0


@dataclass(slots=True)
class Clock:
    """How long each part took, in seconds, in the order of the parts."""

    began: float = field(default_factory=time.monotonic)
    parts: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Take the time of the block."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + time.monotonic() - began

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.parts.items())
        return f"{parts}; {self.seconds:.1f} s in all"


class Story:
    """One run of the demo on running processes. `site` is the demo's own, None where the user named one."""

    def __init__(
        self,
        plan: Plan,
        *,
        screen: Screen,
        supervisor: Supervisor,
        witness: Witness,
        clock: Clock,
        site: DemoSite | None,
    ) -> None:
        self._plan = plan
        self._settings = plan.settings
        self._domain = plan.start.domain
        self._screen = screen
        self._supervisor = supervisor
        self._clock = clock
        self._site = site
        self._interrupted = threading.Event()
        self._watch = Watch(plan.settings, self._domain, witness)
        self._publisher = get_publisher(plan.settings.broker, timeout=plan.settings.publish_timeout)
        self._finder = ClusterSearchClient.of(plan.settings)
        self._searchers: tuple[str, ...] = ()
        self._dead_set = DeadSet(plan.settings.broker, site_policy(plan.settings), self._publisher)

    def interrupt(self) -> None:
        """End the wait for the crawl, from a signal handler: `crawl` then raises KeyboardInterrupt."""
        self._interrupted.set()

    def crawl(self) -> None:
        """Post `index+crawl`, as any foreign producer would, and wait for the site's full pack."""
        with self._clock.part("starting"):
            self._wait("a worker", lambda now: now.consumers > 0)
        with self._clock.part("crawling"):
            self._publisher.publish([site_message("index+crawl", url=self._plan.start.url, domain=self._domain)])
            self._wait("the end of the crawl", lambda now: now.seen > 0 and now.open == 0)
        with self._clock.part("packing"):
            self._wait("the pack", lambda now: now.pack is not None)

    def pack_what_is_there(self) -> None:
        """Pack the pages that were stored so far, while the crawl goes on."""
        self._screen.say("Interrupted: what is there is packed. Ctrl-C again ends the demo.")
        self._publisher.publish([site_message("pack_incremental", domain=self._domain)])
        self._wait("the pack", lambda now: now.pack is not None)

    def bury_and_replay(self) -> tuple[int, int]:
        """Look at the domain's dead messages; repair the demo's own page and send them back.

        Return how many were dead, and how many of them were replayed and did not die again.
        """
        dead = [letter for letter in self._dead_set.letters() if self._is_ours(letter)]
        if not dead or self._site is None:
            return len(dead), 0
        with self._clock.part("replaying"):
            for letter in dead:
                self._screen.say(f"In the dead set: {_told(letter)}")
            self._screen.say("The page is repaired, and they are replayed.")
            self._site.repair()
            before = self._watch.snapshot()
            replayed = self._dead_set.replay(self._is_ours, budget="fresh").done
            self._watch.replayed()
            self._wait("the pack with the page", lambda now: _is_newer(now, before) and now.open == 0)
        still = sum(self._is_ours(letter) for letter in self._dead_set.letters())
        return len(dead), len(replayed) - still

    def answers(self) -> list[Answer]:
        """Search, when searchers have the pack; of the demo's own site also for the page that was repaired."""
        queries = [self._plan.query] + (["broken repaired"] if self._site else [])
        with self._clock.part("placing"):
            self._wait("searchers to load the pack", self._is_placed)
            names = ", ".join(searcher[:8] for searcher in self._searchers)
            self._screen.say(f"  the pack is on {len(self._searchers)} searchers: {names}")
        with self._clock.part("searching"):
            return search(self._finder, self._settings, self._domain, queries)

    def _is_placed(self, now: Snapshot) -> bool:
        self._searchers = holders(self._finder, now.pack) if now.pack else ()
        return bool(self._searchers)

    def close(self) -> None:
        """Close the connection to the searchers."""
        self._finder.close()

    def report(self, answers: list[Answer], dead: int, replayed: int) -> Report:
        """Return what it came to; raises DemoFailed where the demo's own site is not all there."""
        now = self._watch.snapshot()
        if now.pack is None:
            raise DemoFailed(f"{self._domain} has no pack")
        if self._site is not None and now.pack.pages != self._site.pages:
            raise DemoFailed(f"the pack has {now.pack.pages} pages, the site {self._site.pages}")
        return Report(
            domain=self._domain,
            pages=now.pack.pages,
            seconds=self._clock.seconds,
            hits=answers[0].found.total,
            pack=now.pack,
            retried=now.retried,
            dead=dead,
            replayed=replayed,
            searchers=len(self._searchers),
        )

    def addresses(self, query: str) -> tuple[str, str]:
        """Return the URLs of the results page and of Flower, once both answer."""
        results = results_url(self._settings, self._domain, query)
        flower = f"http://{self._settings.flower_host}:{self._settings.flower_port}/"
        self._await("the search page", lambda: _answers(results), seconds=_PATIENCE)
        self._await("Flower", lambda: _answers(f"{flower}healthcheck"), seconds=_PATIENCE)
        return results, flower

    def _wait(self, what: str, condition: Callable[[Snapshot], bool]) -> None:
        """Show the domain until the condition holds; raises DemoFailed when nothing changes any more."""
        last, changed = None, time.monotonic()
        while not condition(now := self._watch.snapshot()):
            self._screen.show(now)
            self._supervisor.check()
            if (death := now.death("pack_full") or now.death("pack_incremental")) is not None:
                raise DemoFailed(death)
            if now.progress != last:
                last, changed = now.progress, time.monotonic()
            elif time.monotonic() - changed > _PATIENCE:
                raise DemoFailed(
                    f"waited for {what}: nothing changed for {_PATIENCE:.0f} s; {self._supervisor.last_lines()}"
                )
            # Between two looks, so that no connection is left in the middle of an answer.
            if self._interrupted.wait(_PAUSE):
                self._interrupted.clear()
                raise KeyboardInterrupt
        self._screen.show(now)

    def _await(self, what: str, condition: Callable[[], bool], *, seconds: float) -> None:
        wait_for(what, condition, self._supervisor, seconds=seconds)

    def _is_ours(self, letter: DeadLetter) -> bool:
        return f'"{self._domain}"'.encode() in letter.delivery.body


def await_services(plan: Plan, supervisor: Supervisor) -> None:
    """Wait until broker and Redis answer; raises DemoFailed."""
    settings = plan.settings
    given = {"up", "given"}
    wait_for(
        "RabbitMQ and Redis",
        lambda: all(service.state in given for service in services.status(settings)),
        supervisor,
        seconds=_INSTALLATION,
    )


def wait_for(what: str, condition: Callable[[], bool], supervisor: Supervisor, *, seconds: float) -> None:
    """Wait for a condition; raises DemoFailed when a process ends or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        supervisor.check()
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {seconds:.0f} s for {what}; {supervisor.last_lines()}")
        _pause()


def _told(letter: DeadLetter) -> str:
    return f"{letter.id} from {letter.queue}: {letter.reason} after {letter.cause.attempts} attempts"


def _is_newer(now: Snapshot, before: Snapshot) -> bool:
    return now.pack is not None and before.pack is not None and now.pack.generation > before.pack.generation


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_HTTP_TIMEOUT) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _pause() -> None:
    threading.Event().wait(_PAUSE)
