"""Time `delay()` beside plain Celery's and a bare publish, with and without confirms."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from kombu import Connection, Queue

from app.topology.retry_policies import site_policy
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, Spread, at_most, ratios
from benchmarks.processes import LineProcess, line_process
from benchmarks.senders import SENDERS
from benchmarks.system import BenchSystem
from benchmarks.usage import usage
from config.routes import INDEX
from config.settings import Settings

#: Rounds, calls of each sender per round, and calls before those that count.
ROUNDS, CALLS, WARM_UP = 30, 100, 300
#: Aims for `delay()` without confirms: milliseconds by percentile, and p50 as a multiple of plain Celery's.
AIMS, RATIO_AIM = {50: 1.0, 99: 5.0}, 1.0
#: Seconds within which messages sent without confirm must arrive.
ARRIVAL = 30.0

METHOD = """\
- Enqueue: six processes take turns of 100 calls, three senders with and without confirms. `index.delay(url)` as a
  client calls it: the URL is checked and normalised, and retry headers are added. `delay(url=, domain=)` of a plain
  Celery application. kombu's `Producer.publish` of the same body on one channel.
- All queues of that row are quorum queues with the same arguments on one broker. They are emptied after each turn, when
  all messages must have arrived. A ratio is that of the two medians of one round.
"""


@dataclass(frozen=True, slots=True)
class EnqueueFigures:
    """Seconds of every call, by sender and round; `others` is the share of the machine that other programs took."""

    seconds: Mapping[str, Sequence[Sequence[float]]]
    others: float

    def percentile(self, sender: str, percent: int) -> float:
        """Return a percentile of the calls, in ms."""
        calls = [each for turn in self.seconds[sender] for each in turn]
        return 1_000 * statistics.quantiles(calls, n=100, method="inclusive")[percent - 1]

    def ratio(self, sender: str, other: str) -> Spread:
        """Return a sender's median as a multiple of another sender's in the same round."""
        return ratios(*([statistics.median(turn) for turn in self.seconds[name]] for name in (sender, other)))


@dataclass(frozen=True, slots=True)
class EnqueueSender:
    """A process that sends to a queue."""

    queue: str
    process: LineProcess

    def turn(self, calls: int) -> list[float]:
        """Send `calls` messages. Return the seconds of each call."""
        seconds: list[float] = json.loads(self.process.ask(str(calls)))
        return seconds


def run(system: BenchSystem, *, rounds: int = ROUNDS, calls: int = CALLS) -> EnqueueFigures:
    """Let the senders take turns, each in its own process, because Perennial changes kombu and py-amqp."""
    with ExitStack() as stack:
        channel = stack.enter_context(Connection(system.settings.broker)).channel()
        senders = [
            stack.enter_context(_sender(name, confirm, system.settings, channel))
            for confirm in (False, True)
            for name in SENDERS
        ]
        for sender in senders:
            sender.turn(WARM_UP)
            _take(channel, sender.queue, WARM_UP)
        before = usage()
        seconds = _rounds(channel, senders, rounds=rounds, calls=calls)
        others = usage().since(before).others
    return EnqueueFigures(seconds, others)


def _rounds(channel: Any, senders: Sequence[EnqueueSender], *, rounds: int, calls: int) -> dict[str, list[list[float]]]:
    seconds: dict[str, list[list[float]]] = {sender.process.name: [] for sender in senders}
    for number in range(rounds):
        first = number % len(senders)
        # The order rotates, because work that one sender leaves to the broker slows the next.
        for sender in (*senders[first:], *senders[:first]):
            seconds[sender.process.name].append(sender.turn(calls))
            _take(channel, sender.queue, calls)
    return seconds


@contextmanager
def _sender(name: str, confirm: bool, settings: Settings, channel: Any) -> Iterator[EnqueueSender]:
    """Run a sender during the block. All queues have the arguments of Perennial's queue."""
    title = f"{name}, confirmed" if confirm else name
    queue = INDEX if name == "Perennial" else title
    arguments = dict(site_policy(settings).work_arguments())
    Queue(queue, durable=True, queue_arguments=arguments)(channel).declare()
    environment = {
        **os.environ,
        "PERENNIAL_DATA_DIR": str(settings.data_dir),
        "BROKER_URL": settings.broker,
        "QUEUE_ARGUMENTS": json.dumps(arguments),
    }
    confirmed = "confirm" if confirm else "off"
    with line_process(title, "benchmarks.senders", name, queue, confirmed, environment=environment) as process:
        yield EnqueueSender(queue, process)


def _take(channel: Any, queue: str, count: int) -> None:
    """Wait until `count` messages have arrived, and purge them, so that no queue grows."""
    deadline = time.monotonic() + ARRIVAL
    while (count := count - channel.queue_purge(queue)) > 0:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{count} messages did not arrive in {queue}")
    if count:
        raise BenchmarkError(f"{-count} more messages arrived in {queue} than were sent")


def shown(figures: EnqueueFigures) -> MeasuredRow:
    """Return table and aims of the calls."""
    figure = "`delay()` without confirms"
    times = (
        at_most(f"{figure}, p{percent}, ms", aim, figures.percentile("Perennial", percent), digits=2)
        for percent, aim in AIMS.items()
    )
    ratio = at_most(f"{figure}, p50, times plain Celery's", RATIO_AIM, figures.ratio("Perennial", "Celery"), digits=2)
    return MeasuredRow((*times, ratio), (_table(figures),), others=figures.others)


def _table(figures: EnqueueFigures) -> FigureTable:
    """Return the time of one call by sender, compared with plain Celery with the same confirms."""
    rows = []
    for name in figures.seconds:
        peer = "Celery, confirmed" if name.endswith("confirmed") else "Celery"
        ratio = "1" if name == peer else figures.ratio(name, peer).text(2)
        rows.append((name, *(f"{figures.percentile(name, percent):.2f}" for percent in (50, 90, 99)), ratio))
    turns = next(iter(figures.seconds.values()))
    title = f"One call, {len(turns) * len(turns[0])} calls each in {len(turns)} rounds"
    return FigureTable(title, ("sender", "p50 ms", "p90 ms", "p99 ms", "p50, times Celery's"), tuple(rows))
