"""The root error, and the errors of messages, the broker and its worker.

An error class decides three things: whether the message is retried, its code in dead sets, and the HTTP answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ProblemType:
    """How HTTP answers a request that ends in an error: a problem type of RFC 9457.

    `name` is the last part of the type's URL. `retry_in` is the number of seconds after which a client may send the
    request again, None if it would fail again.
    """

    name: str
    status: int
    title: str
    retry_in: int | None = None


INTERNAL = ProblemType("internal", 500, "Something went wrong here; it has been logged")
INVALID = ProblemType("invalid", 400, "The request is invalid")
TIMEOUT = ProblemType("timeout", 504, "The search took too long", retry_in=1)
BUSY = ProblemType("busy", 503, "There is more to search than can be answered in time", retry_in=1)
UNAVAILABLE = ProblemType("unavailable", 503, "The search cannot be reached", retry_in=2)


class ApplicationError(Exception):
    """Root of every error that this project raises."""

    #: Whether a retry would fail in the same way: the message is dead-lettered at once.
    permanent: ClassVar[bool] = False
    #: Code in dead sets, metrics and cluster replies; each class has its own.
    reason: ClassVar[str] = "error"
    problem: ClassVar[ProblemType] = INTERNAL


class InvalidMessage(ApplicationError):
    """Raised for a message or a task's arguments that are invalid; names the field and the reason."""

    permanent = True
    reason = "invalid-message"
    problem = INVALID


class TooDeep(InvalidMessage, ValueError):
    """Raised for JSON that is nested too deeply."""


class UnknownType(ApplicationError):
    """Raised for a message type that no route names. Retryable: a newer release may be rolling out."""

    reason = "unknown-type"
    problem = INVALID


class Undecodable(ApplicationError):
    """Raised for a body that is not what its content type says."""

    reason = "undecodable"
    problem = INVALID


class Postpone(ApplicationError):
    """Raised by a task to run again after `seconds`: the message waits in delay queues, its retry budget unspent.

    It waits in a few hops down a ladder of durations, or with `exactly` in one queue of that duration. The message
    comes back with `headers` added. A `mark` is a header, too. With one, the task's hook `on_postponed` is called once
    the message is in the delay queue. `why` is for logs and events.
    """

    reason = "postponed"

    def __init__(
        self, seconds: float, why: str, *, exactly: bool = False, mark: str = "", headers: Mapping[str, Any] = _NOTHING
    ) -> None:
        super().__init__(seconds, why)
        self.seconds = seconds
        self.why = why
        self.exactly = exactly
        self.mark = mark
        self.headers = dict(headers)

    def __reduce__(self) -> tuple[type[Postpone], tuple[float, str], dict[str, object]]:
        """Pickle every attribute, because the pool process sends the error to the worker's parent process."""
        return type(self), (self.seconds, self.why), self.__dict__


class PublishFailed(ApplicationError):
    """Raised when the broker did not confirm a message in time, refused it or could not route it."""

    reason = "publish"


class WorkerMisconfigured(ApplicationError):
    """Raised when a worker starts with a task or a queue whose messages it would lose; names it and the cause."""

    permanent = True
    reason = "not-wired"


class Unroutable(PublishFailed):
    """Raised when no queue is bound for the exchange and the routing key of a message; names both."""

    reason = "unroutable"


class QueueUnavailable(PublishFailed):
    """Raised for a queue whose node is down: it and its messages return with the node; names both."""

    reason = "queue-unavailable"


class RequestTimedOut(ApplicationError):
    """Raised when no reply to a request came by its deadline; names the address and the seconds."""

    reason = "request-timeout"
    problem = TIMEOUT


class AlreadyRunning(ApplicationError):
    """Raised when a process starts of which only one may run, while another one runs; names it."""

    permanent = True
    reason = "already-running"


class DeadSetBusy(ApplicationError):
    """Raised when another operator works on a dead set; names it."""

    reason = "dead-set-busy"


class BrokerUnreachable(ApplicationError):
    """Raised when no connection to the broker can be made, or it broke; names the broker without its password."""

    reason = "broker-unreachable"
    problem = UNAVAILABLE


class ManagementFailed(ApplicationError):
    """Raised when the broker's management API does not answer, or refuses."""

    reason = "management"


class TopologyDiffers(ApplicationError):
    """Raised when the broker has an exchange or a queue with other arguments than declared; names it."""

    permanent = True
    reason = "topology"


class MigrationRefused(ApplicationError):
    """Raised when a queue's messages cannot be moved aside safely now; says what to do first."""

    permanent = True
    reason = "migration-refused"


class Overloaded(ApplicationError):
    """Raised when a process has no room for another request: it could not answer in time."""

    reason = "searcher-busy"
    problem = BUSY
