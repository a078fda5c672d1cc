"""Acknowledgements in groups, against a model of the broker: what is acknowledged is completed, and the reverse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from amqp.exceptions import PreconditionFailed, RecoverableConnectionError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.broker.worker.ack_ledger import PATIENCE, AckLedger, Acknowledgement
from app.broker.worker.acknowledgements import Acknowledgements

pytestmark = pytest.mark.unit


class Channel:
    """A channel as RabbitMQ has it: it knows the outstanding tags and refuses all others."""

    def __init__(self) -> None:
        self.is_open = True
        self.delivered = 0
        self.outstanding: set[int] = set()
        self.acknowledged: set[int] = set()
        self.sent = 0

    def deliver(self) -> int:
        self.delivered += 1
        self.outstanding.add(self.delivered)
        return self.delivered

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        self._take(delivery_tag)
        self.sent += 1
        covered = {tag for tag in self.outstanding if tag < delivery_tag} if multiple else set()
        self.outstanding -= covered
        self.acknowledged |= covered | {delivery_tag}

    def basic_reject(self, delivery_tag: int, requeue: bool) -> None:
        del requeue
        self._take(delivery_tag)

    def _take(self, tag: int) -> None:
        if not self.is_open:
            raise RecoverableConnectionError("connection already closed")
        if tag not in self.outstanding:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        self.outstanding.remove(tag)


class Timer:
    """A timer and its clock, which is turned by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.due: list[float] = []

    def call_after(self, seconds: float, _function: Callable[[], None]) -> None:
        self.due.append(self.now + seconds)


GROUPS = st.integers(1, 5)
POSITIONS = st.lists(st.integers(0, 9), min_size=1, max_size=5)


class Worker(RuleBasedStateMachine):
    """Deliveries that end in any order, turns of the event loop, and lost connections."""

    @initialize(group=GROUPS)
    def start(self, group: int) -> None:
        """Connect for the first time."""
        self.timer = Timer()
        self.connect(group)

    def connect(self, group: int) -> None:
        """Open a channel, whose tags begin at 1."""
        self.group = group
        self.channel = Channel()
        self.acknowledgements = Acknowledgements(self.channel, self.timer, group=group, clock=lambda: self.timer.now)
        self.running: list[int] = []
        self.completed: set[int] = set()

    @rule(number=st.integers(1, 6))
    def deliver(self, number: int) -> None:
        """Receive messages."""
        self.running += [self.channel.deliver() for _ in range(number)]

    @precondition(lambda self: self.running)
    @rule(positions=POSITIONS)
    def complete(self, positions: list[int]) -> None:
        """Complete some of the messages, in any order."""
        for position in positions[: len(self.running)]:
            tag = self.running.pop(position % len(self.running))
            self.completed.add(tag)
            self.channel.basic_ack(tag)

    @precondition(lambda self: self.running)
    @rule(position=st.integers(0, 9))
    def reject(self, position: int) -> None:
        """Reject any of the messages, which the broker notices at once."""
        tag = self.running.pop(position % len(self.running))
        self.channel.basic_reject(tag, requeue=False)
        assert tag not in self.channel.outstanding

    @rule()
    def end_turn(self) -> None:
        """End a turn: few completed messages may wait, and a timer wakes the loop for them."""
        self.acknowledgements.end_turn()
        waiting = self.completed - self.channel.acknowledged
        assert len(waiting) < self.group
        if waiting:
            assert any(self.timer.now < due <= self.timer.now + PATIENCE for due in self.timer.due)

    @rule()
    def pass_time(self) -> None:
        """Let so much time pass that nothing may wait at the end of the turn that the timer begins."""
        self.timer.now += PATIENCE * 1.01
        self.acknowledgements.end_turn()
        assert self.completed == self.channel.acknowledged

    @precondition(lambda self: self.channel.delivered > 5)
    @rule(group=GROUPS)
    def lose_connection(self, group: int) -> None:
        """Lose the connection. Messages of the former channel still end, and their tags reach no other channel."""
        former, running = self.channel, self.running
        former.is_open = False
        before = set(former.acknowledged)
        self.connect(group)
        for tag in running:
            with pytest.raises(RecoverableConnectionError):
                former.basic_ack(tag)
        self.acknowledgements.end_turn()
        assert (former.acknowledged, self.channel.sent) == (before, 0)

    @invariant()
    def only_completed_ones_are_acknowledged(self) -> None:
        """Compare what the broker knows with what was done."""
        assert self.channel.acknowledged <= self.completed
        assert self.channel.outstanding >= set(self.running)

    def teardown(self) -> None:
        """Stop: whatever is completed is acknowledged, and nothing else."""
        self.acknowledgements.send_all()
        assert self.channel.acknowledged == self.completed
        assert self.channel.outstanding == set(self.running)


Worker.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestAcknowledgementsAgreeWithTheBroker = Worker.TestCase


def test_a_run_of_completed_messages_is_acknowledged_with_one_method_when_there_are_enough() -> None:
    ledger = AckLedger(group=4)
    for tag in (2, 1, 5):
        ledger.complete(tag, now=0.0)
    assert ledger.take(now=0.0) == []
    ledger.complete(3, now=0.0)
    assert ledger.take(now=0.0) == [Acknowledgement(3, multiple=True)]
    assert ledger.take(now=PATIENCE) == [Acknowledgement(5, multiple=False)]
    ledger.complete(4, now=1.0)
    assert ledger.take(now=1.0) == []
    assert ledger.take(now=1.0, everything=True) == [Acknowledgement(4, multiple=False)]


def test_a_rejected_message_neither_joins_nor_splits_the_acknowledgement_of_those_around_it() -> None:
    channel = Channel()
    acknowledgements = Acknowledgements(channel, Timer())
    first, second, third = channel.deliver(), channel.deliver(), channel.deliver()
    channel.basic_ack(third)
    channel.basic_reject(second, requeue=False)
    channel.basic_ack(first)
    acknowledgements.end_turn()
    assert (channel.acknowledged, channel.sent) == ({first, third}, 1)


def test_behind_a_long_task_as_few_completed_messages_wait_as_elsewhere() -> None:
    ledger = AckLedger(group=3)
    for tag in range(2, 10_000):
        ledger.complete(tag, now=0.0)
        ledger.take(now=0.0)
        assert len(ledger) < 3
    assert len(ledger._open) == 1
