"""Failures of messages in the worker's main process: the queue's policy decides, then the decision is carried out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger

from ..delivery import Delivery
from ..errors import ApplicationError, InvalidMessage, Postpone, PublishFailed, QueueUnavailable
from ..failure import MAX_MESSAGE, MAX_TRACEBACK, Failure
from ..headers import DELIVERIES, DETOURS, dead_letter_headers, whole_number
from ..outcomes import outcome_message
from ..outgoing import Outgoing
from ..policies.base import Dead, Decision, Drop, Postponed, Reject, Retry, RetryPolicies, replacement_of
from ..publishing import Publisher
from .task_hooks import HookQueue

logger = get_logger(__name__)

#: Seconds before a failed publish is tried again; doubled each time, up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

#: Seconds that a message waits whose dead set is on a node that is down; doubled each time, up to the second.
_FIRST_DETOUR, _LONGEST_DETOUR = 4.0, 512.0

#: Decisions that are carried out together.
_GROUP = 500

_VERBS = {Retry: "retry", Reject: "reject", Postponed: "postpone", Dead: "dead-letter", Drop: "drop"}

#: Seconds for which a message waits that has to run alone, while another one does.
_SET_ASIDE = 0.5

#: What becomes of a run by each decision, for `OnOutcome`. A run may also have `succeeded`, or was `revoked`.
RUN_OUTCOMES = {Retry: "retried", Reject: "retried", Postponed: "postponed", Dead: "dead-lettered", Drop: "dropped"}


class Disposition(Enum):
    """What the consumer does with the original message afterwards."""

    ACKNOWLEDGE = "acknowledge"
    #: Without requeue: the broker dead-letters the message.
    REJECT = "reject"


#: Called when a decision has been carried out, to acknowledge or reject the original.
OnDone = Callable[[Decision, Disposition], None]

#: Gets the task, the queue of its message and the outcome of the run, and the reason code of a failure or postponement.
OnOutcome = Callable[[str, str, str, str], None]


@dataclass(frozen=True, slots=True)
class UnackedMessage:
    """A message that the worker has not acknowledged yet.

    `is_held` returns whether it still can be: after a lost connection the broker delivers the message again. `about` is
    what log lines say of it, as attributes of their records: `task_id`, `task`, `attempt` and `task_kwargs`.
    """

    delivery: Delivery
    is_held: Callable[[], bool]
    done: OnDone
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def context(self) -> dict[str, Any]:
        """Return what log lines say of the message: at least its id."""
        return {"task_id": message_id(self.delivery), **self.about}


@dataclass(frozen=True, slots=True, eq=False)
class _PendingDecision:
    """A decision that is to be carried out, with the message that it publishes."""

    decision: Decision
    message: Outgoing | None
    unacked: UnackedMessage

    @property
    def subject(self) -> tuple[str, str]:
        """Return what is done to a message of which queue, for the log."""
        return _VERBS[type(self.decision)], self.unacked.delivery.queue


class FailureHandler:
    """Handles failures with a connection of its own.

    The original stays unacknowledged until the broker has confirmed its replacement. If a publish fails, a timer of the
    worker's event loop tries it again. What is decided in the thread `loop_thread` waits for the next `flush`.
    """

    def __init__(
        self,
        *,
        policies: RetryPolicies,
        publisher: Publisher,
        timer: Any,
        worker: str,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self.policies = policies
        self._on_outcome = on_outcome
        self.publisher = publisher
        #: Calls the hooks of tasks.
        self.hooks = HookQueue(timer)
        self._timer = timer
        self._worker = worker
        self.loop_thread: int | None = None
        self._gathered: list[_PendingDecision] = []

    def fail(self, unacked: UnackedMessage, failure: Failure, *, is_logged: bool = False) -> None:
        """Let the queue's policy decide on a failed run, carry the decision out, then call `done`.

        Of a failure that Celery has logged, the log gets no second traceback.
        """
        delivery = unacked.delivery
        failure = replace(failure, worker=self._worker)
        policy = self.policies.policy_for(delivery.queue)
        decision = policy.decide(delivery, failure)
        subject = f"{failure.task or 'message'} from {delivery.queue}"
        number = policy.attempts(delivery) + 1
        context = {"task": failure.task, "attempt": number, **unacked.context}
        match decision:
            case Retry(delay_ms=delay_ms) | Reject(delay_ms=delay_ms):
                retries = f"{number} of {policy.retries(delivery)}"
                logger.warning("Retry %s of %s in %g s: %s", retries, subject, delay_ms / 1_000, failure, extra=context)
            case Dead():
                trace = f"\n{failure.traceback}" if failure.traceback and not is_logged else ""
                # For tools such as Sentry that have seen the failure in the process of the run.
                context["is_announced"] = is_logged
                logger.error("Dead-lettered %s (%s): %s%s", subject, failure.reason, failure, trace, extra=context)
            case _:
                logger.warning("Dropped %s: %s", subject, failure, extra=context)

        self._begin(decision, self._reporting(unacked, failure.task, failure.reason, str(failure)))

    def postpone(self, unacked: UnackedMessage, task: str, postpone: Postpone) -> None:
        """Let the message wait in a delay queue, its budget unspent, then call `done`."""
        delivery = unacked.delivery
        policy = self.policies.policy_for(delivery.queue)
        try:
            decision = policy.postpone(delivery, postpone.seconds, exactly=postpone.exactly)
        except Exception as error:  # noqa: BLE001 - A task may ask for an infinite wait, or for NaN seconds.
            self.fail(unacked, failure_of(InvalidMessage(f"{postpone!r}: {error}"), task=task))
            return
        if postpone.headers and isinstance(decision, Postponed):
            decision = replace(decision, headers={**decision.headers, **postpone.headers})
        self._begin(decision, self._reporting(unacked, task, postpone.code))

    def set_aside(self, unacked: UnackedMessage, *, deliveries: int) -> None:
        """Publish the message again with its count of unacknowledged deliveries, for a moment later; then call `done`.

        The copy is a new message to the broker. A policy without delay queues drops the message.
        """
        decision = self.policies.policy_for(unacked.delivery.queue).postpone(unacked.delivery, _SET_ASIDE)
        if isinstance(decision, Postponed):
            decision = replace(decision, headers={**decision.headers, DELIVERIES: deliveries})
        self._begin(decision, unacked)

    def end_at_delivery_limit(self, unacked: UnackedMessage, task: str) -> bool:
        """End a message whose deliveries crashed as many workers as its policy allows; return whether it was ended.

        The policy's decision is carried out, then `done` is called. Any other message is left to run.
        """
        delivery = unacked.delivery
        policy = self.policies.policy_for(delivery.queue)
        decision = policy.decide_before_run(delivery, task=task, worker=self._worker)
        if decision is None:
            return False
        text = "Dead-lettering %s from %s without a run: its earlier deliveries crashed workers"
        logger.error(text, task, delivery.queue, extra=unacked.context)
        self._begin(
            decision, self._reporting(unacked, task, "delivery-limit", "its earlier deliveries crashed workers")
        )
        return True

    def report_outcome(self, task: str, delivery: Delivery, outcome: str, *, reason: str = "", text: str = "") -> None:
        """Report the outcome of a run to the application, and that of a replay to the queue that the replay named.

        Call it when the outcome is durable. A replay that was postponed has none yet.
        """
        if self._on_outcome:
            self._on_outcome(task, delivery.queue, outcome, reason)
        message = None if outcome == RUN_OUTCOMES[Postponed] else outcome_message(delivery, outcome, text)
        if message is None:
            return
        try:
            self.publisher.publish([message])
        except Exception as error:  # noqa: BLE001 - A foreign producer may name an impossible queue (over 255 bytes).
            queue = message.routing_key
            logger.warning("Outcome %r of a replayed message not sent to %.100r: %s", outcome, queue, error)

    def flush(self) -> None:
        """Carry out together what was decided in this turn of the event loop."""
        while self._gathered:
            group, self._gathered = self._gathered[:_GROUP], self._gathered[_GROUP:]
            self._attempt(group, _FIRST_PAUSE)

    def _reporting(self, unacked: UnackedMessage, task: str, reason: str, text: str = "") -> UnackedMessage:
        """Return the message with a further step of its end: the report of the run's outcome."""

        def done(carried_out: Decision, disposition: Disposition) -> None:
            unacked.done(carried_out, disposition)
            outcome = RUN_OUTCOMES[type(carried_out)]
            self.report_outcome(task, unacked.delivery, outcome, reason=reason, text=text)

        return replace(unacked, done=done)

    def _begin(self, decision: Decision, unacked: UnackedMessage) -> None:
        pending = _PendingDecision(decision, replacement_of(decision, unacked.delivery), unacked)
        if self.loop_thread == threading.get_ident():
            self._gathered.append(pending)
        else:
            self._attempt([pending], _FIRST_PAUSE)

    def _attempt(self, group: Sequence[_PendingDecision], pause: float) -> None:
        held = []
        for pending in group:
            if pending.unacked.is_held():
                held.append(pending)
            else:
                # The broker has the original again: a replacement would double it.
                text, context = "No need to %s a message of %s: it is delivered again", pending.unacked.context
                logger.info(text, *pending.subject, extra=context)
        outcomes = carry_out([(pending.decision, pending.message) for pending in held], publisher=self.publisher)
        failed = []
        for pending, outcome in zip(held, outcomes, strict=True):
            if isinstance(outcome, Disposition):
                self._done(pending, outcome)
            elif isinstance(outcome, QueueUnavailable) and (
                detour := self._detour(pending.decision, pending.unacked.delivery)
            ):
                seconds = detour.delay_ms / 1_000
                logger.warning(
                    "Cannot %s a message of %s, it runs again in %g s: %s", *pending.subject, seconds, outcome
                )
                self._begin(detour, pending.unacked)
            else:
                context = pending.unacked.context
                logger.warning(
                    "Cannot %s a message of %s, again in %g s: %s", *pending.subject, pause, outcome, extra=context
                )
                failed.append(self._sendable(pending, outcome))
        # In two halves: one message that the broker never answers must not hold back the others forever.
        middle = (len(failed) + 1) // 2
        for half in (failed[:middle], failed[middle:]):
            if half:
                self._timer.call_after(pause, self._attempt, (half, min(pause * 2, _LONGEST_PAUSE)))

    def _done(self, pending: _PendingDecision, disposition: Disposition) -> None:
        try:
            pending.unacked.done(pending.decision, disposition)
        except Exception:
            # The others of its group must not run again because of it.
            logger.exception("The end of a message failed after it was possible to %s it on %s", *pending.subject)

    def _sendable(self, pending: _PendingDecision, error: Exception) -> _PendingDecision:
        """Return what to try next: the same, or to dead-letter the message without headers that cannot be sent."""
        if isinstance(error, PublishFailed):
            return pending
        delivery = pending.unacked.delivery
        dead = self.policies.policy_for(delivery.queue).dead or self.policies.default.dead
        if dead is None:
            return _PendingDecision(Drop(), None, pending.unacked)
        bare = replace(delivery, headers={}, properties={})
        cause = InvalidMessage(f"headers that cannot be sent again: {error!r}: {dict(delivery.headers)!r}")
        added = dead_letter_headers(bare, replace(failure_of(cause), worker=self._worker), attempts=1)
        decision = Dead(dead, delivery.routing_key, added)
        return _PendingDecision(decision, replacement_of(decision, bare), pending.unacked)

    def _detour(self, decision: Decision, delivery: Delivery) -> Postponed | None:
        """Return the decision that lets a message wait elsewhere while the node of its dead set or retry queue is down.

        The message runs and fails again later, its budget unspent. Otherwise the worker would hold it in memory for as
        long as the node is down. The waits are doubled.
        """
        if not isinstance(decision, Retry | Dead):
            return None
        detours = whole_number(delivery.headers, DETOURS, default=0)
        seconds = min(_FIRST_DETOUR * 2 ** min(detours, 10), _LONGEST_DETOUR)
        waiting = self.policies.policy_for(delivery.queue).postpone(delivery, seconds)
        if not isinstance(waiting, Postponed):
            return None
        return replace(waiting, headers={**waiting.headers, DETOURS: detours + 1})


def carry_out(
    decisions: Sequence[tuple[Decision, Outgoing | None]], *, publisher: Publisher
) -> list[Disposition | Exception]:
    """Publish the replacements of decisions, with one wait for confirms. Return what to do with each original.

    Where it is an exception, the original must stay unacknowledged. A second attempt passes the same object as
    replacement, so that one that arrived late is not sent twice. A message that the broker refuses or cannot route, or
    that cannot be encoded, fails alone. A lost connection is the failure of all that were not confirmed.
    """
    outcomes: list[Disposition | Exception] = [Disposition.ACKNOWLEDGE] * len(decisions)
    by_queue = {decision.queue.name: decision for decision, _ in decisions if not isinstance(decision, Drop)}
    failures: dict[str, Exception] = {}
    for name, each in by_queue.items():
        try:
            if not isinstance(each, Reject):
                publisher.declare([each.queue])
            # Without it the broker drops what is rejected on a classic queue, and holds back that of a quorum queue.
            elif publisher.declare_if_missing(each.queue):
                logger.warning("Queue %s was missing and is declared again", name)
        except Exception as error:  # noqa: BLE001 - It is the outcome of the decisions for this queue.
            failures[name] = error
    to_publish: dict[int, Outgoing] = {}
    for position, (decision, message) in enumerate(decisions):
        if not isinstance(decision, Drop) and decision.queue.name in failures:
            outcomes[position] = failures[decision.queue.name]
        elif isinstance(decision, Reject):
            outcomes[position] = Disposition.REJECT
        elif message:
            to_publish[position] = message
    positions = list(to_publish)
    for number, failure in publisher.publish_each(list(to_publish.values())).items():
        outcomes[positions[number]] = failure
    return outcomes


def carry_out_one(decision: Decision, delivery: Delivery, *, publisher: Publisher) -> Disposition:
    """Publish the replacement, if there is one, and return what to do with the original; raises what failed."""
    [outcome] = carry_out([(decision, replacement_of(decision, delivery))], publisher=publisher)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def return_time(decision: Decision) -> dict[str, str | None]:
    """Return the field `eta` of an event: when a message comes back, None if it does not. Flower shows it."""
    if isinstance(decision, Dead | Drop):
        return {"eta": None}
    return {"eta": (datetime.now(UTC) + timedelta(milliseconds=decision.delay_ms)).isoformat()}


def failure_of(error: BaseException, *, trace: str = "", task: object = "") -> Failure:
    """Return the description of an exception. A class with `permanent = True` is not retried."""
    text = str(error)
    match error:
        case ApplicationError():
            reason = error.reason
        case SoftTimeLimitExceeded():
            reason, text = "soft-time-limit", "the soft time limit is over"
        case TimeLimitExceeded(args=(seconds, *_)):
            reason, text = "time-limit", f"the time limit of {seconds:g} s is over"
        case TimeLimitExceeded():
            reason = "time-limit"
        case WorkerLostError() | SystemExit():
            reason = "worker-lost"
        case MemoryError():
            reason = "out-of-memory"
        case _:
            reason = "exception"
    return Failure(
        reason=reason,
        exception=type(error).__name__,
        message=text[:MAX_MESSAGE],
        traceback=trace[-MAX_TRACEBACK:],
        permanent=getattr(error, "permanent", False) is True,
        at=time.time(),
        task=task[:MAX_MESSAGE] if isinstance(task, str) else "",
    )


def message_id(delivery: Delivery) -> str:
    """Return the id by which logs name a message: of its task, or the one that its sender gave it."""
    given = delivery.headers.get("id") or delivery.properties.get("message_id")
    return str(given or delivery.properties.get("correlation_id") or "")[:MAX_MESSAGE]
