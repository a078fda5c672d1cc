"""What happens when a run ends badly, in one place: the policy decides, the worker's parent process acts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.utils.log import get_logger

from ..delivery import Delivery
from ..errors import ApplicationError, InvalidMessage, Postpone, PublishFailed
from ..headers import OUTCOME_TO, REPLAY_HISTORY, dead_letter_headers
from ..policies.base import MAX_MESSAGE, MAX_TRACEBACK, Dead, Decision, Drop, Failure, Postponed, Reject, Retry
from ..policies.registry import Policies
from ..publishing import Outgoing, Publisher
from .carry_out import Disposition, carry_out

logger = get_logger(__name__)

#: Seconds before a decision whose publish failed is tried again; doubled up to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

#: Bytes of headers above which their frame may be longer than the broker's 131072.
_MANY_HEADERS = 100_000

#: Called when a decision has been carried out, to settle the original.
Done = Callable[[Decision, Disposition], None]


class FailureHandler:
    """Acts on failures in the worker's parent process, on a connection of its own.

    Until the replacement is confirmed the original stays unsettled; a publish that fails is tried again by a timer of
    the event loop.
    """

    def __init__(self, *, policies: Policies, publisher: Publisher, timer: Any, worker: str) -> None:
        self.policies = policies
        self._publisher = publisher
        self._timer = timer
        self._worker = worker

    def failed(self, delivery: Delivery, failure: Failure, done: Done) -> None:
        """Let the queue's policy decide, carry it out, then call `done`."""
        failure = replace(failure, worker=self._worker)
        policy = self.policies.policy_for(delivery.queue, failure.task)
        decision = policy.decide(delivery, failure)
        _log(decision, delivery, failure, policy.attempts(delivery) + 1)
        self._act(decision, delivery, done, _FIRST_PAUSE)
        self.tell(delivery, "died" if isinstance(decision, Dead | Drop) else "failed", str(failure))

    def postponed(self, delivery: Delivery, task: str, postpone: Postpone, done: Done) -> None:
        """Let the message wait in the broker, budget unspent, then call `done`."""
        policy = self.policies.policy_for(delivery.queue, task)
        try:
            decision = policy.postpone(delivery, postpone.seconds, exactly=postpone.exactly)
        except Exception as error:  # noqa: BLE001 - Nobody can wait for an infinite time, or for one that is no number.
            self.failed(delivery, failure_of(InvalidMessage(f"{postpone!r}: {error}"), task=task), done)
            return
        if postpone.mark and isinstance(decision, Postponed):
            decision = replace(decision, headers={**decision.headers, postpone.mark: True})
        self._act(decision, delivery, done, _FIRST_PAUSE)

    def arrived(self, delivery: Delivery, task: str, done: Done) -> bool:
        """Return whether the message may run; where its policy says otherwise, carry that out and call `done`."""
        decision = self.policies.policy_for(delivery.queue, task).decide_before_run(delivery)
        if decision is not None:
            logger.error("Not run again: a message of %s under which workers died", delivery.queue)
            self._act(decision, delivery, done, _FIRST_PAUSE)
        return decision is None

    def tell(self, delivery: Delivery, outcome: str, text: str = "") -> None:
        """Tell whoever replayed a message, and asked for it, how this run of it ended."""
        asked = delivery.headers.get(OUTCOME_TO)
        if not isinstance(asked, str):
            return
        body = json.dumps({"outcome": outcome, "text": text[:MAX_MESSAGE], "of": _replayed(delivery)}).encode()
        try:
            self._publisher.publish([Outgoing(exchange="", routing_key=asked, body=body, mandatory=False)])
        except Exception as error:  # noqa: BLE001 - Anybody may post a name that no queue can have (256 bytes and more).
            logger.warning("Nobody learns that a replayed message %s: %s", outcome, error)

    def _act(self, decision: Decision, delivery: Delivery, done: Done, pause: float) -> None:
        try:
            settlement = carry_out(decision, delivery, publisher=self._publisher)
        except Exception as error:  # noqa: BLE001 - Celery swallows what a hook raises, and the message too.
            logger.warning(
                "Cannot %s a message of %s, again in %g s: %s", _verb(decision), delivery.queue, pause, error
            )
            if not isinstance(error, PublishFailed) or _has_many_headers(decision, delivery):
                decision, delivery = self._bare_burial(delivery, error)
            again = (decision, delivery, done, min(pause * 2, _LONGEST_PAUSE))
            self._timer.call_after(pause, self._act, again)
            return
        done(decision, settlement)

    def _bare_burial(self, delivery: Delivery, error: Exception) -> tuple[Decision, Delivery]:
        """Return what is left for a message whose headers cannot be sent again: its dead set, without them."""
        dead = self.policies.policy_for(delivery.queue).dead or self.policies.default.dead
        if dead is None:
            return Drop(), delivery
        bare = replace(delivery, headers={}, properties={})
        cause = InvalidMessage(f"headers that cannot be sent again: {error!r}: {dict(delivery.headers)!r}")
        told = dead_letter_headers(bare, replace(failure_of(cause), worker=self._worker), attempts=1)
        return Dead(dead, delivery.routing_key, told), bare


def failure_of(error: BaseException, *, trace: str = "", task: object = "") -> Failure:
    """Describe an exception with a reason code. One whose class says `permanent = True` will not be retried."""
    return Failure(
        reason=_reason(error),
        exception=type(error).__name__,
        message=_message(error)[:MAX_MESSAGE],
        traceback=trace[-MAX_TRACEBACK:],
        permanent=getattr(error, "permanent", False) is True,
        at=time.time(),
        task=task[:MAX_MESSAGE] if isinstance(task, str) else "",
    )


def _message(error: BaseException) -> str:
    """Return an exception's text; those of time limits have none that is meant for people."""
    match error:
        case SoftTimeLimitExceeded():
            return "the soft time limit is over"
        case TimeLimitExceeded(args=(seconds, *_)):
            return f"the time limit of {seconds:g} s is over"
        case _:
            return str(error)


def _reason(error: BaseException) -> str:
    match error:
        case ApplicationError():
            return error.reason
        case SoftTimeLimitExceeded():
            return "soft-time-limit"
        case TimeLimitExceeded():
            return "time-limit"
        case WorkerLostError() | SystemExit():
            return "worker-lost"
        case MemoryError():
            return "out-of-memory"
        case _:
            return "exception"


def _has_many_headers(decision: Decision, delivery: Delivery) -> bool:
    """Return whether the headers of a replacement may be why the broker closes the connection at each try."""
    added = {} if isinstance(decision, Reject | Drop) else decision.headers
    return len(repr({**delivery.headers, **added}).encode(errors="backslashreplace")) > _MANY_HEADERS


def _replayed(delivery: Delivery) -> str:
    """Return the dead id that a replayed message had."""
    lives = delivery.headers.get(REPLAY_HISTORY)
    return str(lives[0]) if isinstance(lives, list) and lives else ""


def _verb(decision: Decision) -> str:
    return {Retry: "retry", Reject: "reject", Postponed: "postpone", Dead: "bury", Drop: "drop"}[type(decision)]


def _log(decision: Decision, delivery: Delivery, failure: Failure, attempt: int) -> None:
    what = f"{failure.task or 'message'} from {delivery.queue}: {failure}"
    match decision:
        case Retry(delay_ms=delay_ms) | Reject(delay_ms):
            logger.warning("Attempt %s failed, again in %g s: %s", attempt, delay_ms / 1_000, what)
        case Dead():
            logger.error("Dead (%s): %s\n%s", failure.reason, what, failure.traceback)
        case _:
            logger.warning("Dropped: %s", what)
