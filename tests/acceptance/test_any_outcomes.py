"""Whatever runs come to, in whatever order: a message runs until it succeeds or its budget is spent, and ends once."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.services import Urls
from tests.support import shop
from tests.support.broker import Broker
from tests.support.corner import own_vhost
from tests.support.shop_worker import post, shop_worker
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

QUEUES = ("quick.mail", "quick.labels", "quick.orders")

#: Runs of a message that never succeeds.
BUDGET_AND_ONE = 3


@dataclass(frozen=True, slots=True)
class Script:
    """A message, and what each of its runs comes to."""

    queue: str
    outcomes: tuple[str, ...]

    @property
    def succeeds(self) -> bool:
        """Whether its first success comes within its budget."""
        return self.failures <= BUDGET_AND_ONE - 1

    @property
    def failures(self) -> int:
        """Return the failures before its first success."""
        before = self.outcomes[: self.outcomes.index("succeed")]
        return len(before) - before.count("postpone")

    @property
    def runs(self) -> int:
        """Return the runs that it must have: min(first success, budget + 1), postponements not counted, but run."""
        failures = 0
        for number, outcome in enumerate(self.outcomes, 1):
            failures += outcome in ("fail", "kill")
            if outcome == "succeed" or failures == BUDGET_AND_ONE:
                return number
        raise AssertionError(f"{self} has no end")


@dataclass(frozen=True, slots=True)
class Bench:
    """A running worker, and where its journals are."""

    broker: Broker
    folder: Path
    log: Path

    def post(self, script: Script) -> str:
        """Send the message; return its id."""
        ident = str(uuid.uuid4())
        post(self.broker, script.queue, "scripted", self.folder / ident, outcomes=script.outcomes)
        return ident

    def counts(self, ident: str) -> Counter[str]:
        """Return how often the message ran, was done, and was announced as dead."""
        path = self.folder / ident
        return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()

    def the_dead(self) -> Counter[str]:
        """Return how often each message is in a dead set."""
        rests = [policy.dead.name for policy in map(shop.policies.policy_for, QUEUES) if policy.dead is not None]
        return Counter(message.headers["id"] for rest in rests for message in self.broker.peek(rest))


@pytest.fixture(scope="module")
def bench(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with own_vhost(services) as url:
        folder = tmp_path_factory.mktemp("scripts")
        bench = Bench(Broker(url), folder, folder / "worker.log")
        with shop_worker(url, bench.log, QUEUES, concurrency=3):
            yield bench


SCRIPTS = st.builds(
    lambda queue, outcomes: Script(queue, (*outcomes, "succeed")),
    st.sampled_from(QUEUES),
    st.lists(st.sampled_from(["succeed", "fail", "fail", "kill", "postpone"]), max_size=6),
)


# An example takes seconds: few of them, many messages each, and no search for a smaller one.
@pytest.mark.slow
@settings(max_examples=2, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(SCRIPTS, min_size=30, max_size=40))
def test_any_sequence_of_outcomes_ends_at_its_first_success_or_with_its_budget_exactly_once(
    bench: Bench, scripts: list[Script]
) -> None:
    sent = {bench.post(script): script for script in scripts}

    def ended() -> bool:
        dead = bench.the_dead()
        return all(dead[ident] or bench.counts(ident)["done"] for ident in sent)

    eventually(ended, f"all of {scripts} ended; {bench.log.read_text()[-2_000:]}", seconds=60, every=0.2)
    dead = bench.the_dead()
    came = {ident: (bench.counts(ident)["run"], bench.counts(ident)["done"], dead[ident]) for ident in sent}
    assert came == {
        ident: (script.runs, int(script.succeeds), int(not script.succeeds)) for ident, script in sent.items()
    }
    assert {queue: bench.broker.depth(queue) for queue in not_the_ends()} == dict.fromkeys(not_the_ends(), 0)


def not_the_ends() -> list[str]:
    """Return the work queues and those in which messages wait."""
    waiting = [queue.name for policy in map(shop.policies.policy_for, QUEUES) for queue in policy.queues()[1:]]
    return [*QUEUES, *waiting]
