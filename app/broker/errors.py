"""Errors of messages, the broker and its worker. Each class has a reason code and says whether a retry can help."""

from __future__ import annotations

from typing import ClassVar


class ApplicationError(Exception):
    """Root of every error that this project raises. Retryable unless its class says `permanent`."""

    permanent: ClassVar[bool] = False
    #: Short code that groups failures in dead sets and metrics.
    reason: ClassVar[str] = "error"
    #: Type, status and title of the problem (RFC 9457) that answers a request which ends in this error.
    problem: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Something went wrong here; it has been logged"
    #: Seconds after which a client may send the request again; None if it would fail again.
    retry_in: ClassVar[int | None] = None


class InvalidMessage(ApplicationError):
    """Raised for a message or a task's arguments that are invalid; names the field and the reason."""

    permanent = True
    reason = "invalid-message"
    problem = "invalid"
    status = 400
    title = "The request cannot be answered as it was asked"


class UnknownType(ApplicationError):
    """Raised for a message type that no route names. Retryable: a newer release may be rolling out."""

    reason = "unknown-type"
    problem = "invalid"
    status = 400
    title = "The request cannot be answered as it was asked"


class Undecodable(ApplicationError):
    """Raised for a body that is not what its content type says."""

    reason = "undecodable"
    problem = "invalid"
    status = 400
    title = "The request cannot be answered as it was asked"


class Postpone(ApplicationError):
    """Raised by a task to run again after `seconds`: the message waits in delay queues, its retry budget unspent.

    It waits in a few hops down a ladder of durations, or with `exactly` in one queue of that duration. A `mark` is a
    header that the message comes back with. With one, the task's hook `on_postponed` is called once the message is in
    the delay queue. `why` is for logs and events.
    """

    reason = "postponed"

    def __init__(self, seconds: float, why: str, *, exactly: bool = False, mark: str = "") -> None:
        super().__init__(seconds, why)
        self.seconds = seconds
        self.why = why
        self.exactly = exactly
        self.mark = mark

    def __reduce__(self) -> tuple[type[Postpone], tuple[float, str], dict[str, object]]:
        """Pickle every attribute, for the way from a pool process: the arguments alone are not all."""
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


class RequestTimedOut(ApplicationError):
    """Raised when no reply to a request came by its deadline; names the address and the seconds."""

    reason = "request-timeout"
    problem = "timeout"
    status = 504
    title = "The search took too long"
    retry_in = 1


class AlreadyRunning(ApplicationError):
    """Raised when a process starts of which only one may run, and one runs already; names it."""

    permanent = True
    reason = "already-running"


class DeadSetBusy(ApplicationError):
    """Raised when another operator works on a dead set; names it."""

    reason = "dead-set-busy"


class BrokerUnreachable(ApplicationError):
    """Raised when no connection to the broker can be made, or it broke; names the broker without its password."""

    reason = "broker-unreachable"
    problem = "unavailable"
    status = 503
    title = "The search cannot be reached"
    retry_in = 2


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
    problem = "busy"
    status = 503
    title = "There is more to search than can be answered in time"
    retry_in = 1
