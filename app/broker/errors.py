"""The root error, and the errors of messages, the broker and its worker."""

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
TIMEOUT = ProblemType("timeout", 504, "The answer took too long", retry_in=1)
BUSY = ProblemType("busy", 503, "There is more to do than can be answered in time", retry_in=1)
UNAVAILABLE = ProblemType("unavailable", 503, "What answers this cannot be reached", retry_in=2)


class ApplicationError(Exception):
    """Root of every error that this project raises.

    The head of a class states how it differs from its parent: `class PackError(ApplicationError, reason="pack")`.
    """

    #: Code in dead sets, metrics and cluster replies. A class states one if an operator acts on it otherwise than on
    #: its parent, and no two state the same one. Errors that only end a command have none.
    reason: ClassVar[str] = "error"
    #: Whether a retry would fail in the same way: the message is dead-lettered at once.
    permanent: ClassVar[bool] = False
    #: How HTTP answers a request that ends in the error.
    problem: ClassVar[ProblemType] = INTERNAL

    def __init_subclass__(
        cls, *, reason: str | None = None, permanent: bool | None = None, problem: ProblemType | None = None
    ) -> None:
        """Set what the head of a class states; the rest is inherited."""
        super().__init_subclass__()
        stated = {"reason": reason, "permanent": permanent, "problem": problem}
        for name, value in stated.items():
            if value is not None:
                setattr(cls, name, value)


class InvalidMessage(ApplicationError, reason="invalid-message", permanent=True, problem=INVALID):
    """Raised for a message or a task's arguments that are invalid; names the field and the reason."""


class TooDeep(InvalidMessage, ValueError):
    """Raised for JSON that is nested too deeply."""


class UnknownType(ApplicationError, reason="unknown-type", problem=INVALID):
    """Raised for a message type that no route names. Retryable: a newer release may be rolling out."""


class Undecodable(ApplicationError, reason="undecodable", problem=INVALID):
    """Raised for a body that is not what its content type says."""


class Postpone(ApplicationError, reason="postponed"):
    """Raised by a task to run again after `seconds`: the message waits in delay queues, its retry budget unspent.

    It waits in a few hops down a ladder of durations, or with `exactly` in one queue of that duration. The message
    comes back with `headers` added. `why` is for logs and events, `code` for metrics: one of few words.
    """

    def __init__(
        self, seconds: float, why: str, *, code: str = "", exactly: bool = False, headers: Mapping[str, Any] = _NOTHING
    ) -> None:
        super().__init__(seconds, why)
        self.seconds = seconds
        self.why = why
        self.code = code
        self.exactly = exactly
        self.headers = dict(headers)


class PublishFailed(ApplicationError, reason="publish", problem=UNAVAILABLE):
    """Raised when the broker did not confirm a message in time, refused it or could not route it."""

    #: Whether the message was sent and got no answer: it may have arrived.
    is_in_doubt = False


class WorkerMisconfigured(ApplicationError):
    """Raised when a worker starts with a task or a queue whose messages it would lose; names it and the cause."""


class Unroutable(PublishFailed, reason="unroutable"):
    """Raised when no queue is bound for the exchange and the routing key of a message; names both."""


class QueueUnavailable(PublishFailed, reason="queue-unavailable"):
    """Raised for a queue whose node is down: it and its messages return with the node; names both."""


class RequestTimedOut(ApplicationError, reason="request-timeout", problem=TIMEOUT):
    """Raised when no reply to a request came by its deadline; names the address and the seconds."""


class AlreadyRunning(ApplicationError):
    """Raised when a process starts of which only one may run, while another one runs; names it."""


class DeadSetBusy(ApplicationError, reason="dead-set-busy", problem=BUSY):
    """Raised when another operator works on a dead set; names it."""


class BrokerUnreachable(ApplicationError, reason="broker-unreachable", problem=UNAVAILABLE):
    """Raised when no connection to the broker can be made, or it broke; names the broker without its password."""


class ManagementFailed(ApplicationError, reason="management", problem=UNAVAILABLE):
    """Raised when the broker's management API does not answer, or refuses."""


class ManagementRefused(ManagementFailed):
    """Raised when the account may use the management API, and lacks the tag for one address of it."""


class ControlRefused(ApplicationError, reason="control-refused", problem=UNAVAILABLE):
    """Raised when the account may not publish to the workers' remote control."""


class TopologyDiffers(ApplicationError):
    """Raised when the broker has an exchange or a queue with other arguments than declared; names it."""


class MigrationRefused(ApplicationError):
    """Raised when a queue's messages cannot be moved aside safely now; says what to do first."""


class Overloaded(ApplicationError, reason="searcher-busy", problem=BUSY):
    """Raised when a process has no room for another request: it could not answer in time."""


def error_text(error: BaseException) -> str:
    """Return the text of an error, or the name of its class where it has none."""
    return str(error) or type(error).__name__


def error_with_class(error: BaseException) -> str:
    """Return the class and the text of an error, such as `ValueError: expected a number`."""
    return f"{type(error).__name__}: {error}"
