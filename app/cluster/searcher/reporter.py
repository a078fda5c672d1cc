"""A searcher's reports to the orchestrator: registration, heartbeats and the outcome of each order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.broker.errors import PublishFailed
from app.broker.publishing import Outgoing, Publisher
from app.cluster.protocol import MISSED_HEARTBEATS, Outcome, SearcherReport, to_payload
from app.cluster.searcher.loader import JobOutcome
from app.envelopes import event_message, request_message

log = logging.getLogger(__name__)

#: Attempts to tell of a change, and seconds between two. The next heartbeat says how it stands anyway.
_ATTEMPTS, _PAUSE = 3, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishers:
    """Two connections, so that heartbeats do not wait for the confirm of an event."""

    events: Publisher
    heartbeats: Publisher


class Reporter:
    """Registers when asked, and from then on sends a heartbeat every `every` seconds, in a thread of its own.

    `state` makes a report of how the searcher stands; the reporter numbers it. While `silence_reason` returns a
    reason, no report is sent: a searcher that does not answer has to count as lost.
    `published` is called after each message.
    """

    def __init__(
        self,
        publishers: Publishers,
        *,
        every: float,
        state: Callable[[], SearcherReport],
        silence_reason: Callable[[], str] = lambda: "",
        published: Callable[[], None] = lambda: None,
    ) -> None:
        self._publishers = publishers
        self._every = every
        self._state = state
        self._unwell = silence_reason
        self._beaten = published
        self._seq = 0
        self._numbering = threading.Lock()
        self._leaving = False
        self._silent = ""
        self._lost = False
        self._due = True
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def register(self) -> None:
        """Register now: somebody has to learn everything, perhaps anew. Returns at once."""
        with self._changed:
            self._due, self._lost, self._silent = True, False, ""
            self._changed.notify_all()
            if self._thread.ident is None and not self._stopped:
                self._thread.start()

    def tell(self, change: JobOutcome) -> None:
        """Tell what became of a change; returns when the broker has it, or when it is left to the next heartbeat."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            # Made anew each time: what is told late is how it stands then.
            outcome = Outcome(report=self.report(), domain=change.domain, sha256=change.sha256, reason=change.reason)
            try:
                self._publishers.events.publish([event_message(change.kind, to_payload(outcome))])
            except PublishFailed as error:
                log.warning(
                    "Outcome %s of %s not published, the next heartbeat has the state: %s",
                    change.kind,
                    change.domain,
                    error,
                )
            else:
                return

    def leave(self) -> None:
        """Announce that the searcher is leaving; no heartbeat follows."""
        self._leaving = True
        self._stop()
        try:
            self._publishers.events.publish([event_message("register", to_payload(self.report()))])
        except PublishFailed as error:
            log.warning("Leaving not announced: %s", error)

    def report(self) -> SearcherReport:
        """Return how the searcher stands; of two reports, the one with the higher number is later."""
        with self._numbering:
            self._seq += 1
            return replace(self._state(), seq=self._seq, leaving=self._leaving)

    def close(self) -> None:
        """Stop, and close the connections."""
        self._stop()
        for publisher in (self._publishers.events, self._publishers.heartbeats):
            publisher.close()

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(self._every)

    def _run(self) -> None:
        while self._wait():
            if not self._may_speak():
                continue
            with self._changed:
                registering, self._due = self._due, False
            said = self._say(self._publishers.events, self._registration) if registering else self._beat()
            if registering and not said:
                self._due = True

    def _wait(self) -> bool:
        """Wait until there is something to say; False when there will be no more."""
        with self._changed:
            # What could not be said is tried again with the next beat.
            self._changed.wait_for(lambda: self._stopped or self._at_once(), self._every)
            return not self._stopped

    def _at_once(self) -> bool:
        return self._due and not self._lost and not self._silent

    def _may_speak(self) -> bool:
        before, self._silent = self._silent, self._unwell()
        if self._silent and not before:
            log.warning("No heartbeats are sent: %s", self._silent)
        return not self._silent

    def _beat(self) -> bool:
        return self._say(self._publishers.heartbeats, self._heartbeat)

    def _say(self, publisher: Publisher, message: Callable[[], Outgoing]) -> bool:
        try:
            publisher.publish([message()])
            self._beaten()
        except Exception as error:  # noqa: BLE001 - Whatever it was, the next heartbeat is tried.
            if not self._lost:
                log.warning("Report not published, again with the next heartbeat: %r", error)
            self._lost = True
            return False
        self._lost = False
        return True

    def _registration(self) -> Outgoing:
        return event_message("register", to_payload(self.report()))

    def _heartbeat(self) -> Outgoing:
        beat = request_message("heartbeat", to_payload(self.report()))
        expiration = str(round(self._every * MISSED_HEARTBEATS * 1_000))
        return replace(beat, properties={**beat.properties, "expiration": expiration}, mandatory=False)
