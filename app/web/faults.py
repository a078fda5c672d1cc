"""The faults that a request may end in: status, name, and what they tell whoever asked."""

from __future__ import annotations

from dataclasses import dataclass

from app.broker.errors import ApplicationError, BrokerUnreachable, InvalidMessage, RequestTimedOut, SearcherBusy
from app.errors import InvalidQuery, NotPlaced, PackError, PackNotFound, SearchTimeout, SearchUnavailable, StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A kind of fault. `retry_after` is the seconds after which asking again makes sense, None where it does not."""

    name: str
    status: int
    title: str
    retry_after: int | None = None


INVALID = Fault(name="invalid", status=400, title="The request cannot be answered as it was asked")
NEVER_INDEXED = Fault(name="never-indexed", status=404, title="The site was never indexed")
NOT_PLACED = Fault(name="not-placed", status=503, title="The site's index is on no searcher yet", retry_after=5)
BUSY = Fault(name="busy", status=503, title="There is more to search than can be answered in time", retry_after=1)
UNAVAILABLE = Fault(name="unavailable", status=503, title="The search cannot be reached", retry_after=2)
BROKEN = Fault(name="broken", status=503, title="The site's index cannot be read", retry_after=30)
TIMEOUT = Fault(name="timeout", status=504, title="The search took too long", retry_after=1)
LIMITED = Fault(name="limited", status=429, title="Too many searches from one address", retry_after=1)
NOT_FOUND = Fault(name="not-found", status=404, title="There is nothing at this address")
NOT_ALLOWED = Fault(name="not-allowed", status=405, title="This address only answers GET and HEAD")
TOO_LONG = Fault(name="too-long", status=414, title="The address is too long")
WITH_BODY = Fault(name="with-body", status=413, title="This server reads no body")
INTERNAL = Fault(name="internal", status=500, title="Something went wrong here; it has been logged")

#: All kinds, for the description of the API.
FAULTS = (
    INVALID,
    NEVER_INDEXED,
    NOT_PLACED,
    BUSY,
    UNAVAILABLE,
    BROKEN,
    TIMEOUT,
    LIMITED,
    NOT_FOUND,
    NOT_ALLOWED,
    TOO_LONG,
    WITH_BODY,
    INTERNAL,
)

#: First match wins.
_BY_ERROR: tuple[tuple[type[ApplicationError], Fault], ...] = (
    (InvalidQuery, INVALID),
    (InvalidMessage, INVALID),
    (PackNotFound, NEVER_INDEXED),
    (NotPlaced, NOT_PLACED),
    (SearcherBusy, BUSY),
    (SearchUnavailable, UNAVAILABLE),
    (BrokerUnreachable, UNAVAILABLE),
    (SearchTimeout, TIMEOUT),
    (RequestTimedOut, TIMEOUT),
    (PackError, BROKEN),
    (StoreError, BROKEN),
)


def fault_of(error: ApplicationError) -> Fault:
    """Return what kind of fault an error of ours is to whoever asked."""
    return next((fault for kind, fault in _BY_ERROR if isinstance(error, kind)), INTERNAL)
