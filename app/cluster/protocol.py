"""Messages between search clients, the orchestrator and searchers, as values and as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from app.broker.errors import ApplicationError, InvalidMessage, Overloaded
from app.errors import InvalidQuery, NotHere, NotPlaced, PackCorrupt, PackNotFound, SearchTimeout
from app.search.contract import Text

#: Whatever else a message of a later release says is ignored.
_STRICT = ConfigDict(extra="ignore", strict=True)

#: 2^20 bytes.
MB = 1024 * 1024

#: Heartbeats that may be missed before a searcher is gone, or an order lost; by then an older one is worth nothing.
MISSED = 3

#: Numbers that any program reads as they were written (RFC 8259 section 6).
_MOST = 2**53 - 1

#: Codes of the errors that a searcher or the orchestrator replies with.
Fault = Literal["invalid-query", "never-indexed", "not-placed", "not-here", "timeout", "busy", "broken"]
#: The errors that the search client raises for these codes.
_REPLY_ERRORS = (InvalidQuery, PackNotFound, NotPlaced, NotHere, SearchTimeout, Overloaded, PackCorrupt)
#: Problem types of error classes for which a reply has another code.
_FAULTS: dict[str, Fault] = {"invalid": "invalid-query", "unavailable": "not-placed", "internal": "broken"}

#: Wrong fields of a message that are named.
_TOLD = 10

M = TypeVar("M")


def size_mb(size: int) -> int:
    """Return bytes as MB, rounded up: so much room a file needs at most."""
    return -(-size // MB)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Holding:
    """One version of a domain's pack. `sha256` is of the compressed file and tells versions apart; `size_mb` is of the
    database, rounded up.
    """

    domain: Text
    sha256: Text
    generation: Annotated[int, Field(le=_MOST)]
    size_mb: Annotated[int, Field(ge=0, le=_MOST)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Report:
    """All that a searcher says of itself: `register` and `heartbeat`, and part of what else it tells.

    `seq` counts its reports, so that an older one that arrives later is known. `free_space` is what it has room for
    besides what it holds, `capacity` what it had room for if it held nothing: MB, rounded down. `loading` holds the
    checksums it is at work on. One that is `leaving` answers what is under way, and wants nothing more.
    """

    searcher_id: Text
    seq: Annotated[int, Field(ge=0, le=_MOST)]
    free_space: Annotated[int, Field(ge=0, le=_MOST)]
    capacity: Annotated[int, Field(ge=0, le=_MOST)] = 0
    holdings: tuple[Holding, ...] = ()
    loading: tuple[Text, ...] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Outcome:
    """`loaded`, `unloaded` or `failed` of one version; how the searcher stands after it; of a failure, the reason."""

    report: Report
    domain: Text
    sha256: Text
    reason: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Load:
    """`load`: fetch this version of a domain's pack from the store, and answer from it in place of any other.

    Where the store has a later one by then, that is loaded, and `loaded` names it.
    """

    domain: Text
    sha256: Text
    generation: int
    size_mb: int


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Unload:
    """`unload`: forget a domain's pack, if it is this version."""

    domain: Text
    sha256: Text


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Route:
    """Where a domain's pack is: `searchers` that answer from it, the newest version first. `built_at` is UTC, ISO 8601.

    The first `newest` of the searchers have the same version, the others older ones; `missing` is the number of copies
    still to be placed, `why` what stands against it where somebody should know.
    """

    domain: str
    sha256: str
    generation: int
    pages: int
    built_at: str
    size_mb: int
    searchers: tuple[str, ...] = ()
    newest: Annotated[int, Field(ge=0)] = 0
    missing: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Node:
    """A searcher as the orchestrator knows it; `age` is the seconds since it was heard of."""

    searcher_id: str
    free_space: int
    capacity: int
    age: float
    domains: tuple[str, ...] = ()
    loading: tuple[str, ...] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Routes:
    """The answer to `get_routes`: all that has a pack, and who answers for it.

    `orchestrator` names one life of the orchestrator; `settled` is false while it still gathers what is there.
    """

    orchestrator: str
    version: int
    settled: bool
    routes: tuple[Route, ...]
    searchers: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProblemReply:
    """The reply to a request that failed."""

    fault: Fault
    detail: str


def fault_of(error: type[ApplicationError]) -> Fault:
    """Return the code of an error class in a reply: its reason or its problem type; `broken` for all other classes."""
    codes: tuple[Fault, ...] = get_args(Fault)
    named = (error.reason, _FAULTS.get(error.problem.name, error.problem.name))
    return next((code for name in named for code in codes if code == name), "broken")


_ERRORS = {fault_of(error): error for error in _REPLY_ERRORS}


def error_of(reply: ProblemReply) -> ApplicationError:
    """Return the error that the search client raises for a reply."""
    return _ERRORS[reply.fault](reply.detail)


def problem_reply(error: Exception, *, process: str) -> ProblemReply:
    """Return the reply to a request that ended in `error`; unexpected errors are detailed only in the log of `process`.

    Characters that cannot be encoded are replaced: the text may quote the request.
    """
    if not isinstance(error, ApplicationError):
        return ProblemReply(fault="broken", detail=f"the {process} failed; see its log")
    return ProblemReply(fault=fault_of(type(error)), detail=str(error).encode(errors="replace").decode())


def read(kind: type[M], payload: Any) -> M:
    """Return a message's payload as a value; raises InvalidMessage naming the fields that are wrong, and how.

    `payload` is JSON, or the object it was decoded to.
    """
    adapter: TypeAdapter[M] = _adapter(kind)
    try:
        if isinstance(payload, bytes | str):
            return adapter.validate_json(payload)
        return adapter.validate_python(payload, strict=False)
    except ValidationError as error:
        raise InvalidMessage(f"{kind.__name__.lower()}: {_first_faults(error)}") from error


def read_reply(kind: type[M], body: Any) -> M:
    """Return a reply of type `kind`; raises the error that the searcher replied with, PackCorrupt for anything else."""
    try:
        return read(kind, body)
    except InvalidMessage as error:
        unreadable = PackCorrupt(f"the searcher's reply cannot be read: {error}")
    try:
        problem = read(ProblemReply, body)
    except InvalidMessage:
        raise unreadable from None
    raise error_of(problem)


def _first_faults(error: ValidationError) -> str:
    """Name the first fields that are wrong: of a long list all may be, and this is logged and sent."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}" for fault in faults[:_TOLD]]
    more = [f"and {len(faults) - _TOLD} more"] if len(faults) > _TOLD else []
    return "; ".join(told + more)


def to_json(value: Any) -> bytes:
    """Return a value of this module, or one made of dataclasses, as JSON."""
    return _adapter(type(value)).dump_json(value)


def to_payload(value: Any) -> dict[str, Any]:
    """Return a value of this module as the object that a message carries."""
    payload: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")
    return payload


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
