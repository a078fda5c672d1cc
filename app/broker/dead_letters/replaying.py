"""The act of a replay: each message confirmed in its queue before it leaves the dead set."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from amqp.exceptions import NotFound
from kombu import Connection

from ..delivery import Delivery
from ..errors import Unroutable
from ..headers import DEAD_ID, OUTCOME_TO, REPLAY_HISTORY
from ..policies.base import Address, Budget, Policy
from ..publishing import Outgoing, Publisher
from ..worker.carry_out import replacement
from .audit import Audit
from .canary import Canary
from .letters import DeadLetter
from .reading import Reading
from .working import Stopped

#: Failures in a row after which it is the broker, and not the message.
_TOO_MANY = 3


class Replaying:
    """Sends dead messages of one policy home.

    The first message for an address goes alone: where no queue is bound for it, that message and all others for the
    address stay. The broker itself does not always tell, for an alternate exchange takes what cannot be routed; ours
    leads to the dead set, and so the messages that arrive there are watched.
    """

    def __init__(
        self,
        policy: Policy,
        publisher: Publisher,
        *,
        watch: Watch,
        budget: Budget,
        audit: Audit | None = None,
        rate: float | None = None,
        canary: Canary | None = None,
    ) -> None:
        self._policy = policy
        self._publisher = publisher
        self._budget = budget
        self._audit = audit
        self._rate = rate
        self._canary = canary
        self._next = 0.0
        self._watch = watch
        #: Why nothing can be sent to an address; empty where it can.
        self._refused: dict[Address, str] = {}
        self._failures = 0

    @property
    def batch(self) -> int:
        """A hundred at a time, or one where they are paced."""
        return 1 if self._rate or self._canary else 100

    def ready(self, within: float) -> bool:
        """Wait for the time of the next one, and until the outcomes of those before allow it."""
        wait = self._next - time.monotonic()
        if wait > within:
            return False
        if wait > 0:
            time.sleep(wait)
        return self._canary is None or self._canary.ready(within - max(0.0, wait))

    def __call__(self, letters: Sequence[DeadLetter]) -> Mapping[str, str]:
        """Publish them; return why some must stay. Raises Stopped when nothing can be published."""
        stays: dict[str, str] = {}
        known = []
        for letter in letters:
            address = self._home(letter)
            if address not in self._refused:
                stays |= self._first(letter, address)
            elif self._refused[address]:
                stays[letter.id] = self._refused[address]
            else:
                known.append(letter)
        stays |= self._together(known)
        self._record(letters, stays)
        if self._rate:
            self._next = max(self._next, time.monotonic()) + 1 / self._rate
        return stays

    def tidy(self, reading: Reading) -> None:
        """Remove the copies that came back to the dead set: their originals are still there."""
        self._watch.tidy(reading)

    def finish(self) -> None:
        """Wait for the outcomes of the last ones."""
        if self._canary is not None:
            self._canary.finish()

    def _first(self, letter: DeadLetter, address: Address) -> dict[str, str]:
        """Try an address with a message of its own; return why it stays, if it does."""
        why = ""
        try:
            with self._watch:
                self._publisher.publish([self._again(letter)])
                if self._watch.came_back(letter):
                    why = _no_queue(address)
        except Unroutable:
            why = _no_queue(address)
        except Exception as error:  # noqa: BLE001 - What cannot be sent must not keep others from it.
            return self._failed(letter, error)
        self._refused[address] = why
        self._failures = 0
        return {letter.id: why} if why else {}

    def _together(self, letters: Sequence[DeadLetter]) -> dict[str, str]:
        """Publish at once; where that fails one by one, since a single message may be why."""
        if not letters:
            return {}
        try:
            self._publisher.publish([self._again(letter) for letter in letters])
        except Exception as error:  # noqa: BLE001 - What cannot be sent must not keep others from it.
            if len(letters) == 1:
                return self._failed(letters[0], error)
            stays: dict[str, str] = {}
            for letter in letters:
                stays |= self._together([letter])
            return stays
        self._failures = 0
        return {}

    def _failed(self, letter: DeadLetter, error: Exception) -> dict[str, str]:
        self._failures += 1
        if self._failures == _TOO_MANY:
            raise Stopped(f"the broker takes no message: {error}")
        return {letter.id: str(error) or type(error).__name__}

    def _home(self, letter: DeadLetter) -> Address:
        dead = letter.delivery
        return self._policy.replay_address(letter.queue or dead.routing_key, dead.routing_key)

    def _again(self, letter: DeadLetter) -> Outgoing:
        dead, home = letter.delivery, self._home(letter)
        headers = self._policy.replay_headers({**dead.headers, DEAD_ID: letter.id}, self._budget)
        if self._canary is not None:
            headers[OUTCOME_TO] = self._canary.queue
        bare = replace(dead, headers={})
        return replacement(bare, exchange=home.exchange, routing_key=home.routing_key, headers=headers)

    def _record(self, letters: Sequence[DeadLetter], stays: Mapping[str, str]) -> None:
        if self._audit:
            outcomes = [
                (letter, f"stays: {stays[letter.id]}" if letter.id in stays else "replayed") for letter in letters
            ]
            self._audit.write("replay", outcomes, budget=self._budget)
        if self._canary:
            self._canary.sent([letter.id for letter in letters if letter.id not in stays])


class Watch:
    """Sees what comes to a dead set within a `with` block: a copy of each message, in an exclusive queue."""

    def __init__(self, connection: Connection, exchange: str) -> None:
        self._connection = connection
        self._exchange = exchange
        self._channel: Any = None
        self._queue = ""
        self._returned: set[str] = set()

    def __enter__(self) -> None:
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
            self._queue = self._channel.queue_declare("", exclusive=True).queue
        try:
            self._channel.queue_bind(self._queue, self._exchange, routing_key="#")
        except NotFound:
            # Without its exchange, nothing can come to the dead set.
            self._queue = ""

    def __exit__(self, *_: object) -> None:
        if self._queue and self._channel.is_open:
            self._channel.queue_unbind(self._queue, self._exchange, routing_key="#")
            self._channel.queue_purge(self._queue)

    def came_back(self, letter: DeadLetter) -> bool:
        """Return whether this message, published and confirmed a moment ago, arrived in its dead set again."""
        while self._queue and (message := self._channel.basic_get(self._queue, no_ack=True)) is not None:
            if _is_copy(Delivery.of(self._channel.message_to_python(message), ""), {letter.id}):
                self._returned.add(letter.id)
                return True
        return False

    def tidy(self, reading: Reading) -> None:
        """Remove what came back."""
        reading.remove_arrivals(lambda delivery: _is_copy(delivery, self._returned), len(self._returned))
        self._returned.clear()


def _is_copy(delivery: Delivery, ids: set[str]) -> bool:
    """Return whether this is a replayed message that nobody ran: it has no death of its own."""
    headers = delivery.headers
    lives = headers.get(REPLAY_HISTORY)
    died = DEAD_ID in headers or "x-death" in headers
    return not died and isinstance(lives, list) and bool(lives) and str(lives[0]) in ids


def _no_queue(address: Address) -> str:
    return f"no queue is bound for key {address.routing_key!r} of exchange {address.exchange!r}"
