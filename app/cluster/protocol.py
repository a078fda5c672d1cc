"""Messages between search clients, the orchestrator and searchers, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from app.broker.errors import UNAVAILABLE, ApplicationError, InvalidMessage, Overloaded
from app.errors import NOT_PLACED, InvalidQuery, NotPlaced, PackCorrupt, PackNotFound, PackNotLoaded, SearchTimeout
from app.search.contract import MessageText

#: Unknown fields are ignored: a later release may send them.
_STRICT = ConfigDict(extra="ignore", strict=True)

#: 2^20 bytes.
MB = 1024 * 1024

#: Missed heartbeats after which a searcher or an order counts as lost. Heartbeats and orders expire after that time.
MISSED_HEARTBEATS = 3

#: The largest integer that every JSON implementation reads exactly (RFC 8259 section 6).
_MAX_INTEGER = 2**53 - 1

#: The errors with which a searcher or the orchestrator replies, by reason code. The search client raises the same.
REPLY_ERRORS: Mapping[str, type[ApplicationError]] = {
    error.reason: error
    for error in (InvalidQuery, PackNotFound, NotPlaced, PackNotLoaded, SearchTimeout, Overloaded, PackCorrupt)
}

#: Invalid fields of a message that an error text names at most.
_NAMED_FIELDS = 10

M = TypeVar("M")


def size_mb(size: int) -> int:
    """Return bytes as MB, rounded up."""
    return -(-size // MB)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PackVersion:
    """A version of a domain's pack on a searcher.

    `sha256` is of the compressed file and identifies the version; `size_mb` is of the database, rounded up.
    """

    domain: MessageText
    sha256: MessageText
    generation: Annotated[int, Field(le=_MAX_INTEGER)]
    size_mb: Annotated[int, Field(ge=0, le=_MAX_INTEGER)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class SearcherReport:
    """What a searcher says of itself: the payload of `heartbeat` and `register`, and a part of each outcome.

    `seq` is its sequence number, by which an older report that arrives later is recognised. `changes` is the number of
    changes of the searcher's packs since it started. The orchestrator compares it with the outcomes that arrived, and
    requests a registration if one is missing. `free_space` is the room besides the packs, and `capacity` that without
    any pack: MB, rounded down. A searcher that is `leaving` drains and takes no further orders.

    `loading` has the checksums that are still to be loaded, None in an outcome. Only a registration has
    `pack_versions`, all packs of the searcher: the size of other reports does not depend on their number.
    """

    searcher_id: MessageText
    seq: Annotated[int, Field(ge=0, le=_MAX_INTEGER)]
    changes: Annotated[int, Field(ge=0, le=_MAX_INTEGER)]
    free_space: Annotated[int, Field(ge=0, le=_MAX_INTEGER)]
    capacity: Annotated[int, Field(ge=0, le=_MAX_INTEGER)] = 0
    leaving: bool = False
    loading: tuple[MessageText, ...] | None = None
    pack_versions: tuple[PackVersion, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class OrderOutcome:
    """The outcome of an order (`loaded`, `unloaded` or `failed`) with a report after it; only failures have a `reason`.

    `held` is the version of the domain's pack that the searcher serves after it, or None.
    """

    report: SearcherReport
    domain: MessageText
    sha256: MessageText
    reason: MessageText = ""
    held: PackVersion | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Load(PackVersion):
    """`load`: fetch this version of a domain's pack from the store and serve it instead of any other version.

    If the store has a later version by then, the searcher loads that one, and `loaded` names it.
    """


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Unload:
    """`unload`: remove a domain's pack if it is this version."""

    domain: MessageText
    sha256: MessageText


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class PackRoute:
    """The route of a domain: the searchers that serve its pack, newest version first. `built_at` is UTC, ISO 8601.

    The first `newest` of `searchers` have the same version, the others older ones. `missing` is the number of copies
    still to be placed, and `unplaced_reason` says why they cannot be placed now.
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
    unplaced_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class SearcherStatus:
    """A searcher in the reply to `get_routes`, which has `packs` packs; `age` is the seconds since its last report."""

    searcher_id: str
    free_space: int
    capacity: int
    age: float
    packs: int = 0
    loading: tuple[str, ...] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class RoutesRequest:
    """`get_routes`: the routes, or what has changed in them since `revision` of the run `orchestrator`."""

    orchestrator: MessageText = ""
    revision: Annotated[int, Field(ge=0, le=_MAX_INTEGER)] = 0


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Routes:
    """The reply to `get_routes`: the route of each domain with a pack, and all searchers.

    `orchestrator` identifies a run of the orchestrator. `ready` is false until it has read the store and running
    searchers had time to register. `store_id` is the id of the store that it reads, empty before the first scan.
    `revision` counts the changes of the run's routes. A reply with a `since` has only the routes that changed after
    that revision, and the domains whose route was removed.
    """

    orchestrator: str
    ready: bool
    routes: tuple[PackRoute, ...]
    searchers: tuple[SearcherStatus, ...]
    store_id: str = ""
    revision: int = 0
    since: int | None = None
    removed: tuple[str, ...] = ()

    @cached_property
    def by_domain(self) -> Mapping[str, PackRoute]:
        """The routes by domain."""
        return {route.domain: route for route in self.routes}

    def request(self) -> RoutesRequest:
        """Return the request for what has changed since these routes."""
        return RoutesRequest(orchestrator=self.orchestrator, revision=self.revision)

    def updated(self, later: Routes) -> Routes:
        """Return all routes after a later reply; raises InvalidMessage for changes since routes other than these."""
        if later.since is None:
            return later
        if (later.orchestrator, later.since) != (self.orchestrator, self.revision):
            raise InvalidMessage(f"routes since revision {later.since}, expected {self.revision}")
        routes = self.routes
        if later.routes or later.removed:
            by_domain = {**self.by_domain, **later.by_domain}
            for domain in later.removed:
                by_domain.pop(domain, None)
            routes = tuple(by_domain[domain] for domain in sorted(by_domain))
        return replace(later, routes=routes, since=None, removed=())


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ProblemReply:
    """The reply to a request that failed: the reason code and the text of its error."""

    reason: str
    detail: str


def error_of(reply: ProblemReply) -> ApplicationError:
    """Return the error that the search client raises for a reply."""
    return REPLY_ERRORS.get(reply.reason, PackCorrupt)(reply.detail)


def problem_reply(error: Exception, *, process: str) -> ProblemReply:
    """Return the reply to a request that ended in `error`; unexpected errors are detailed only in the log of `process`.

    An error that replies do not have gets the reason of the first one of its problem type, or of PackCorrupt.
    """
    if not isinstance(error, ApplicationError):
        return ProblemReply(reason=PackCorrupt.reason, detail=f"the {process} failed; see its log")
    reason, problem = error.reason, error.problem
    if reason not in REPLY_ERRORS:
        problem = NOT_PLACED if problem == UNAVAILABLE else problem
        reason = next((each.reason for each in REPLY_ERRORS.values() if each.problem == problem), PackCorrupt.reason)
    # Characters that cannot be encoded are replaced: the text may quote the request.
    return ProblemReply(reason=reason, detail=str(error).encode(errors="replace").decode())


def read(kind: type[M], payload: Any) -> M:
    """Return a message's payload as a value; raises InvalidMessage with the first invalid fields and their errors.

    `payload` is JSON text or a decoded object.
    """
    adapter: TypeAdapter[M] = _adapter(kind)
    try:
        if isinstance(payload, bytes | str):
            return adapter.validate_json(payload)
        return adapter.validate_python(payload, strict=False)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        # The text is logged and sent, and every item of a long list may be invalid.
        texts = [f"{'.'.join(map(str, each['loc'])) or 'payload'}: {each['msg']}" for each in faults[:_NAMED_FIELDS]]
        more = [f"and {len(faults) - _NAMED_FIELDS} more"] if len(faults) > _NAMED_FIELDS else []
        raise InvalidMessage(f"invalid {kind.__name__}: {'; '.join(texts + more)}") from error


def read_reply(kind: type[M], body: Any) -> M:
    """Return a reply of type `kind`; raises the error that came in its place, PackCorrupt for anything else."""
    try:
        return read(kind, body)
    except InvalidMessage as error:
        unreadable = PackCorrupt(f"the reply cannot be read: {error}")
    try:
        problem = read(ProblemReply, body)
    except InvalidMessage:
        raise unreadable from None
    raise error_of(problem)


def to_json(value: Any) -> bytes:
    """Return a value of this module, or one made of dataclasses, as JSON."""
    return _adapter(type(value)).dump_json(value)


def to_payload(value: Any) -> dict[str, Any]:
    """Return a value of this module as a decoded JSON object."""
    payload: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")
    return payload


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
