"""A searcher's reports to the orchestrator: registration, heartbeats and the outcome of each order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from app.broker.errors import PublishFailed
from app.broker.publishing import Publisher
from app.cluster.protocol import MISSED_HEARTBEATS, OrderOutcome, SearcherReport, to_payload
from app.cluster.searcher.pack_jobs import JobOutcome
from app.messages.envelopes import event_message
from config.routes import HEARTBEAT

log = logging.getLogger(__name__)

#: Attempts to publish an outcome, and seconds between two. After the last one, the searcher registers.
_ATTEMPTS, _ATTEMPT_INTERVAL = 3, 1.0


class Reporter:
    """Registers on request, and from then on sends a heartbeat every `every` seconds, in a thread.

    While `silence_reason` returns a reason, no report is sent: a searcher that does not answer has to count as lost.
    """

    def __init__(
        self,
        *,
        events: Publisher,
        heartbeats: Publisher,
        published: Callable[[], None],
        every: float,
        report: Callable[[], SearcherReport],
        registration: Callable[[], SearcherReport],
        silence_reason: Callable[[], str],
    ) -> None:
        """`report` and `registration` make a report without a number. `published` is called after each of the two.

        Two connections, so that heartbeats do not wait for the confirm of an event.
        """
        self._events = events
        self._heartbeats = heartbeats
        self._published = published
        self._every = every
        self._report = report
        self._registration = registration
        self._seq = 0
        self._leaving = False
        self._counting = threading.Lock()
        self._silence_reason = silence_reason
        self._silent = ""
        self._has_failed = False
        self._registration_due = True
        self._stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def _numbered(self, report: Callable[[], SearcherReport]) -> SearcherReport:
        """Return a report of the current state; the later of two reports has the higher number."""
        with self._counting:
            self._seq += 1
            return replace(report(), seq=self._seq, leaving=self._leaving)

    def register(self) -> None:
        """Register soon; returns at once."""
        with self._changed:
            self._registration_due, self._has_failed, self._silent = True, False, ""
            self._changed.notify_all()
            if self._thread.ident is None and not self._stopped:
                self._thread.start()

    def report_outcome(self, outcome: JobOutcome) -> None:
        """Publish an outcome; returns once the broker confirmed it, or after the last attempt."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_ATTEMPT_INTERVAL)
            # Each attempt reports the state of its own time, and packs change only after this outcome is reported.
            message = OrderOutcome(
                report=replace(self._numbered(self._report), loading=None),
                domain=outcome.domain,
                sha256=outcome.sha256,
                reason=outcome.reason,
                held=outcome.held,
            )
            try:
                self._events.publish([event_message(outcome.kind, to_payload(message))])
            except PublishFailed as error:
                log.warning("Outcome %s of %s not published: %s", outcome.kind, outcome.domain, error)
            else:
                return
        self.register()

    def leave(self) -> None:
        """Announce that the searcher is leaving; no heartbeat follows."""
        self._leaving = True
        self._stop()
        try:
            self._publish_registration()
        except PublishFailed as error:
            log.warning("Leaving not announced: %s", error)

    def close(self) -> None:
        """Stop, and close the connections."""
        self._stop()
        self._events.close()
        self._heartbeats.close()

    def _stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(self._every)

    def _run(self) -> None:
        while True:
            with self._changed:
                # After a failure, and while the searcher is silent, a registration is retried with the next heartbeat.
                self._changed.wait_for(
                    lambda: self._stopped or (self._registration_due and not self._has_failed and not self._silent),
                    self._every,
                )
                if self._stopped:
                    return
            before, self._silent = self._silent, self._silence_reason()
            if self._silent:
                if not before:
                    log.warning("No heartbeats are sent: %s", self._silent)
                continue
            with self._changed:
                registering, self._registration_due = self._registration_due, False
            self._has_failed = not self._publish(registering=registering)
            if registering and self._has_failed:
                self._registration_due = True

    def _publish_registration(self) -> None:
        self._events.publish([event_message("register", to_payload(self._numbered(self._registration)))])
        self._published()

    def _publish(self, *, registering: bool) -> bool:
        """Publish a registration or a heartbeat; return whether it was published."""
        try:
            if registering:
                self._publish_registration()
            else:
                heartbeat = event_message(HEARTBEAT, to_payload(self._numbered(self._report)))
                expiration = str(round(self._every * MISSED_HEARTBEATS * 1_000))
                properties = {"delivery_mode": 1, "expiration": expiration}
                self._heartbeats.publish([replace(heartbeat, properties=properties)])
                self._published()
        except Exception as error:  # noqa: BLE001 - After any error, the next heartbeat is tried.
            if not self._has_failed:
                log.warning("Report not published, again with the next heartbeat: %r", error)
            return False
        return True
