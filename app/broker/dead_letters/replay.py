"""Replay dead letters: publish each to its queue, confirmed, before it is removed from the dead set."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from amqp.exceptions import NotFound
from kombu import Connection

from ..delivery import Delivery
from ..errors import InvalidMessage, PublishFailed, Unroutable, error_text
from ..headers import DEAD_ID, MAX_REPLAY_HISTORY, OUTCOME_TO, REPLAY_CHANGES, ReplayBudget, replay_history
from ..outgoing import Outgoing
from ..policies.base import Address, Policy
from ..publishing import Publisher
from .acts import ActStopped, DeadSetAct, Halt, never_halt
from .audit import Audit
from .canary import Canary
from .letters import DeadLetter
from .reading import DeadSetLease

#: Why a letter stays that an interrupted replay may have sent.
IN_DOUBT: Final = (
    "an interrupted replay may have sent it already: look for what it did, then replay it `again`, or drop it"
)

#: Publishes that fail in a row before the replay stops: then the broker is the cause, not a message.
_MAX_FAILURES = 3

#: Seconds after which a waiting replay notices that it must stop.
_HALT_INTERVAL = 0.5

#: Headers in which Celery describes the arguments of a message for its events and logs.
_DESCRIPTIONS = ("argsrepr", "kwargsrepr")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayChanges:
    """What a replay changes of its letters; None keeps what a letter has. A changed body is sent as UTF-8."""

    body: str | None = None
    content_type: str | None = None
    address: Address | None = None

    def __str__(self) -> str:
        """Name the changes for the audit and the replay history; empty without any."""
        body = f"body of {len(_encoded(self.body)):,} bytes" if self.body is not None else ""
        kind = f"content type {self.content_type}" if self.content_type is not None else ""
        to = f"to {self.address}" if self.address is not None else ""
        return ", ".join(part for part in (body, kind, to) if part)


def _encoded(body: str) -> bytes:
    return body.encode(errors="replace")


#: Replays letters as they are.
UNCHANGED = ReplayChanges()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How letters are replayed: `rate` is letters per second, `budget` defaults to that of their policy.

    `canary` is the seconds to wait for the outcome of each letter. Then the others follow only if the first one
    succeeds, and the first failure stops the replay. What an interrupted replay may have sent stays, unless it is sent
    `again`.
    """

    budget: ReplayBudget | None = None
    rate: float | None = None
    canary: float | None = None
    again: bool = False
    changes: ReplayChanges = UNCHANGED

    def __post_init__(self) -> None:
        """Raise InvalidMessage for a rate or a canary of 0 or less: a replay without its canary would send all."""
        for name, value, unit in (("rate", self.rate, "letters per second"), ("canary", self.canary, "seconds")):
            if value is not None and not value > 0:
                raise InvalidMessage(f"{name} {value:g}: expected more than 0 {unit}")

    def given(self) -> dict[str, str | float | bool]:
        """Return by name, for people, what differs from the plain replay of letters."""
        options = {"budget": self.budget, "rate": self.rate, "canary": self.canary, "again": self.again}
        given = {name: value for name, value in options.items() if value}
        return given | ({"changes": str(self.changes)} if self.changes != UNCHANGED else {})


#: A replay by the defaults of each letter's policy.
PLAIN_REPLAY = ReplayOptions()


class ReplayJournal:
    """Notes, by dead set, of the letters that a replay is about to send. This one keeps none.

    Without notes, a letter that was sent before a kill is sent again. A subclass keeps them durably, so that it is not.
    It raises ApplicationError if they cannot be read or written.
    """

    def note(self, set_name: str, ids: Sequence[str]) -> str:
        """Keep the ids of letters that are about to be sent; return the key of the note."""
        del set_name, ids
        return ""

    def notes(self, set_name: str) -> Mapping[str, Sequence[str]]:
        """Return the ids of each note, by its key."""
        del set_name
        return {}

    def delete(self, keys: Iterable[str]) -> None:
        """Delete notes."""


class Replay(DeadSetAct):
    """Publishes dead letters of one policy to their replay addresses.

    The first letter for an address is published alone. If no queue is bound there, that letter and all others for the
    address stay. An alternate exchange hides this from the publisher, because it routes the message to the dead set;
    so `returned` watches what arrives there.

    What is about to be sent is noted first. Letters `in_doubt` stay: an interrupted replay may have sent them. So does
    a letter whose confirm is lost with its connection, and its note is kept. `publisher` sends no letter twice.
    """

    def __init__(
        self,
        policy: Policy,
        publisher: Publisher,
        options: ReplayOptions,
        *,
        returned: ReturnedCopies,
        journal: ReplayJournal,
        in_doubt: frozenset[str],
        audit: Audit,
        canary: Canary | None = None,
        halt: Halt = never_halt,
    ) -> None:
        super().__init__(halt)
        self._policy = policy
        self._publisher = publisher
        self._returned = returned
        self._journal = journal
        self._in_doubt = in_doubt
        #: Keys of the notes of what was sent and is not surely removed yet.
        self.notes: list[str] = []
        self._budget = options.budget or policy.replay_budget
        self._audit = audit
        self._interval = 1 / options.rate if options.rate else 0.0
        #: Monotonic seconds at which the next letter may be published.
        self._next_at = 0.0
        self._canary = canary
        self._changes = options.changes
        #: Why nothing can be published to an address; empty where it can.
        self._refusals: dict[Address, str] = {}
        self._failures_in_row = 0
        #: Why nothing more is published; empty while the broker accepts messages.
        self._stop_reason = ""
        self.batch_size = 1 if options.rate or canary else 100

    def wait_ready(self, timeout: float) -> bool:
        """Wait until the rate and the outcomes of earlier letters allow the next one. Raises ActStopped."""
        self._require_accepted()
        until = time.monotonic() + timeout
        self.require_no_halt()
        if self._next_at > until:
            return False
        while (seconds := self._next_at - time.monotonic()) > 0:
            time.sleep(min(seconds, _HALT_INTERVAL))
            self.require_no_halt()
        while self._canary is not None and not self._canary.wait_ready(
            max(0.0, min(_HALT_INTERVAL, until - time.monotonic()))
        ):
            self.require_no_halt()
            if time.monotonic() >= until:
                return False
        return True

    def apply(self, letters: Sequence[DeadLetter]) -> Mapping[str, str]:
        """Publish the letters; return why some must stay.

        When the broker accepts nothing, the next call of another method raises ActStopped: what it has confirmed
        is then removed from the dead set.
        """
        stayed = {letter.id: IN_DOUBT for letter in letters if letter.id in self._in_doubt}
        sendable = [letter for letter in letters if letter.id not in stayed]
        noted = self._journal.note(sendable[0].set, [letter.id for letter in sendable]) if sendable else ""
        routable = []
        for letter in sendable:
            address = self._address(letter)
            if self._stop_reason:
                stayed[letter.id] = self._stop_reason
            elif address not in self._refusals:
                stayed |= self._publish_first(letter, address)
            elif self._refusals[address]:
                stayed[letter.id] = self._refusals[address]
            else:
                routable.append(letter)
        stayed |= self._publish_batch(routable)
        if sendable:
            self._note_outcome(noted, sendable, stayed)
        outcomes = (f"stays: {stayed[letter.id]}" if letter.id in stayed else "replayed" for letter in letters)
        change = {"changes": str(self._changes)} if self._changes != UNCHANGED else {}
        self._audit.write("replay", zip(letters, outcomes, strict=True), budget=self._budget, **change)
        if self._canary:
            self._canary.expect([letter.id for letter in letters if letter.id not in stayed])
        self._next_at = max(self._next_at, time.monotonic()) + self._interval
        return stayed

    def remove_copies(self, lease: DeadSetLease) -> None:
        """Remove the copies that came back to the dead set: their originals are still there."""
        self._returned.remove(lease)

    def finish(self) -> None:
        """Wait for the outcomes of the last letters. Raises ActStopped."""
        self._require_accepted()
        while self._canary is not None and not self._canary.wait_all(_HALT_INTERVAL):
            self.require_no_halt()

    def _require_accepted(self) -> None:
        if self._stop_reason:
            raise ActStopped(self._stop_reason)

    def _note_outcome(self, noted: str, letters: Sequence[DeadLetter], stayed: Mapping[str, str]) -> None:
        """Keep the note of a batch until its letters are removed, and one of those in doubt for longer.

        Letters that were surely not sent get none.
        """
        in_doubt = [letter.id for letter in letters if stayed.get(letter.id) == IN_DOUBT]
        sent = [letter.id for letter in letters if letter.id not in stayed]
        if len(sent) == len(letters):
            self.notes.append(noted)
            return
        if in_doubt:
            self._journal.note(letters[0].set, in_doubt)
        if sent:
            self.notes.append(self._journal.note(letters[0].set, sent))
        self._journal.delete([noted])

    def _publish_first(self, letter: DeadLetter, address: Address) -> dict[str, str]:
        """Publish the first letter for an address; return why it stays, if it does."""
        is_confirmed = False
        try:
            with self._returned:
                self._publisher.publish([self._outgoing(letter)])
                is_confirmed = True
                routed = not self._returned.contains(letter)
        except Unroutable:
            routed = False
        except Exception as error:  # noqa: BLE001 - One message that cannot be published must not keep others back.
            stays = self._publish_failed(letter, error)
            # Where the search for a copy failed, the letter is in its queue, or in the dead set again.
            return {letter.id: IN_DOUBT} if is_confirmed else stays
        refusal = "" if routed else f"no queue is bound for {address}"
        self._refusals[address] = refusal
        self._failures_in_row = 0
        return {letter.id: refusal} if refusal else {}

    def _publish_batch(self, letters: Sequence[DeadLetter]) -> dict[str, str]:
        """Publish letters together, then those that failed one by one: a single message may be the cause.

        Returns why letters stay. Nothing is published after too many failures in a row.
        """
        if self._stop_reason:
            return {letter.id: self._stop_reason for letter in letters}
        messages = [self._outgoing(letter) for letter in letters]
        failures = self._publisher.publish_each(messages)
        stayed: dict[str, str] = {}
        for position, (letter, message) in enumerate(zip(letters, messages, strict=True)):
            error = failures.get(position)
            if error and len(letters) > 1 and not self._stop_reason:
                error = self._publisher.publish_each([message]).get(0)
            if error:
                stayed |= self._publish_failed(letter, error)
            else:
                self._failures_in_row = 0
        return stayed

    def _publish_failed(self, letter: DeadLetter, error: Exception) -> dict[str, str]:
        self._failures_in_row += 1
        if self._failures_in_row == _MAX_FAILURES:
            self._stop_reason = f"the broker accepts no message: {error}"
        if isinstance(error, PublishFailed) and error.is_in_doubt:
            return {letter.id: IN_DOUBT}
        return {letter.id: error_text(error)}

    def _address(self, letter: DeadLetter) -> Address:
        if self._changes.address is not None:
            return self._changes.address
        routing_key = letter.delivery.routing_key
        return self._policy.replay_address(letter.queue or routing_key, routing_key)

    def _outgoing(self, letter: DeadLetter) -> Outgoing:
        address = self._address(letter)
        headers = self._policy.replay_headers({**letter.delivery.headers, DEAD_ID: letter.id}, self._budget)
        if self._canary is not None:
            headers[OUTCOME_TO] = self._canary.queue
        if changes := [*([f"{letter.id}: {self._changes}"] if self._changes != UNCHANGED else []), *letter.changes]:
            headers[REPLAY_CHANGES] = changes[:MAX_REPLAY_HISTORY]
        copy = Outgoing.copy_of(
            letter.delivery, exchange=address.exchange, routing_key=address.routing_key, headers=headers
        )
        if self._changes.content_type is not None:
            copy = replace(copy, content_type=self._changes.content_type)
        if self._changes.body is None:
            return copy
        return replace(
            copy,
            body=_encoded(self._changes.body),
            headers={name: value for name, value in headers.items() if name not in _DESCRIPTIONS},
            content_encoding="utf-8",
        )


class ReturnedCopies:
    """Replayed letters that came back to their dead set by an alternate exchange.

    Within a `with` block, an exclusive queue gets a copy of each message that arrives in the dead set.
    """

    def __init__(self, connection: Connection, exchange: str) -> None:
        self._connection = connection
        self._exchange = exchange
        self._channel: Any = None
        self._queue = ""
        self._ids: set[str] = set()

    def __enter__(self) -> None:
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
            self._queue = self._channel.queue_declare("", exclusive=True).queue
        try:
            self._channel.queue_bind(self._queue, self._exchange, routing_key="#")
        except NotFound:
            # Without its exchange, nothing can arrive in the dead set.
            self._queue = ""

    def __exit__(self, *_: object) -> None:
        if self._queue and self._channel.is_open:
            self._channel.queue_unbind(self._queue, self._exchange, routing_key="#")
            self._channel.queue_purge(self._queue)

    def contains(self, letter: DeadLetter) -> bool:
        """Return whether the letter, published and confirmed a moment ago, arrived in the dead set again."""
        while self._queue and (message := self._channel.basic_get(self._queue, no_ack=True)) is not None:
            if _is_unprocessed_replay(Delivery.of(self._channel.message_to_python(message), ""), {letter.id}):
                self._ids.add(letter.id)
                return True
        return False

    def remove(self, lease: DeadSetLease) -> None:
        """Remove the copies from the dead set, which came to the end of its documented queue."""
        if not self._ids:
            return
        with lease.reading() as reader:
            for delivery, delivery_tag in reader.deliveries():
                if _is_unprocessed_replay(delivery, self._ids):
                    reader.remove(delivery_tag)
        self._ids.clear()


def _is_unprocessed_replay(delivery: Delivery, ids: set[str]) -> bool:
    """Return whether a message is a replay of one of the letters and was not dead-lettered again."""
    headers = delivery.headers
    dead_lettered = DEAD_ID in headers or "x-death" in headers
    return not dead_lettered and not ids.isdisjoint(replay_history(headers)[:1])
