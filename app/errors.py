"""The application's errors. `app.broker.errors` explains what `reason`, `permanent` and `problem` decide."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from app.broker.errors import BUSY, INVALID, TIMEOUT, UNAVAILABLE, ApplicationError, InvalidMessage, ProblemType

BROKEN = ProblemType("broken", 503, "The site's index cannot be read", retry_in=30)
NEVER_INDEXED = ProblemType("never-indexed", 404, "The site was never indexed")
NOT_PLACED = ProblemType("not-placed", 503, "The site's index is on no searcher yet", retry_in=5)
NOT_FOUND = ProblemType("not-found", 404, "There is nothing at this address")
NOT_ALLOWED = ProblemType("not-allowed", 405, "This address does not answer requests of this method")
TOO_LONG = ProblemType("too-long", 414, "The address is too long")
WITH_BODY = ProblemType("with-body", 413, "No body is read here, or none of this or of an unknown length")
UNAUTHORIZED = ProblemType("unauthorized", 401, "This address is for operators only")
FORBIDDEN = ProblemType("forbidden", 403, "This operator may not do this")
LIMITED = ProblemType("limited", 429, "Too many searches from one address", retry_in=1)


class RetryAfterError(Exception):
    """Mixin of errors for an HTTP answer with a Retry-After field; `retry_after` is in seconds, None without it."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


# Messages and sites


class InvalidUrl(InvalidMessage, reason="invalid-url"):
    """Raised for a URL that cannot be crawled; names the URL and the reason."""


class OutOfScope(InvalidMessage):
    """Raised for a URL outside the domain that a message names."""


class InvalidSite(ApplicationError, reason="invalid-site", permanent=True, problem=INVALID):
    """Raised for a site with an invalid field; names the site, the field and the reason.

    `faults` has the reason by field, as far as a field is at fault.
    """

    def __init__(self, message: str, faults: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.faults = dict(faults or {})


class SiteBusy(ApplicationError, reason="site-busy", problem=BUSY):
    """Raised when a packer is at work on a domain that is to be removed; names it."""


class SecretMissing(ApplicationError, reason="secret-missing"):
    """Raised when a site names a secret that SITE_SECRETS does not have; names both."""


# HTTP


class FetchError(ApplicationError, reason="fetch"):
    """Raised when a page could not be fetched this time."""


class ConnectionFailed(FetchError, reason="connection"):
    """Raised when a connection failed or broke."""


class ResponseTimeout(FetchError, reason="response-timeout"):
    """Raised when a response did not arrive within its deadline, in seconds."""


class ServerError(RetryAfterError, FetchError, reason="server-error"):
    """Raised for a 5xx or 429 answer."""


class RobotsUnavailable(RetryAfterError, FetchError, reason="robots-unavailable"):
    """Raised when robots.txt answers 5xx or not at all: RFC 9309 section 2.3.1.4 forbids crawling until it does."""


class ForbiddenAddress(FetchError, reason="forbidden-address", permanent=True):
    """Raised when a host's address is not public and ALLOW_PRIVATE_HOSTS does not name it."""


# Storage and packs


class StoreError(ApplicationError, reason="store", problem=BROKEN):
    """Raised when the object store fails."""


class ObjectNotFound(StoreError):
    """Raised when an object is not in the store; names its key."""


class InvalidKey(StoreError, permanent=True):
    """Raised for a key or a store URL that no store can hold; names it and the reason."""


class ObjectDamaged(StoreError, reason="object-damaged"):
    """Raised for an object whose bytes are not what its key says; `key` and `etag` are empty where unknown."""

    def __init__(self, message: str, key: str = "", etag: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.etag = etag


class PreconditionFailed(StoreError):
    """Raised when a conditional write is refused: another writer changed the object since it was read."""


class PackError(ApplicationError, reason="pack", problem=BROKEN):
    """Raised when a pack cannot be built or read."""


class DiskFull(PackError, reason="disk-full"):
    """Raised when a disk has too little free space for a pack, and enough in all; names its folder."""


class PackRefused(PackError, reason="pack-refused", permanent=True):
    """Raised when a new pack would replace a better one (no pages, start page failed, under half the pages)."""


class PackCorrupt(PackError, reason="pack-corrupt", permanent=True):
    """Raised when a pack's checksum, schema version or structure is wrong."""


class PackQuarantined(PackError, reason="pack-quarantined", permanent=True):
    """Raised for a version of a pack whose opening ended searchers before; names the domain."""


class PackNotFound(PackError, reason="pack-not-found", permanent=True, problem=NEVER_INDEXED):
    """Raised when a domain has no pack: it was never indexed, or is not packed yet."""


# Search


class InvalidQuery(ApplicationError, reason="invalid-query", permanent=True, problem=INVALID):
    """Raised for an invalid search (empty, too long); names the reason."""


class SearchTimeout(ApplicationError, reason="search-timeout", problem=TIMEOUT):
    """Raised when a search took longer than its time limit, in seconds."""


class NotPlaced(ApplicationError, reason="not-placed", problem=NOT_PLACED):
    """Raised when a domain has a pack, but no reachable searcher serves it; names the domain."""


class PackNotLoaded(NotPlaced, reason="pack-not-loaded"):
    """Raised by a searcher for a domain that it does not serve, though another one may; names the domain."""


class SearchUnavailable(ApplicationError, reason="search-unavailable", problem=UNAVAILABLE):
    """Raised when it is unknown which searcher has which pack: the orchestrator has not answered yet."""


# Notifications


class NotificationFailed(RetryAfterError, ApplicationError, reason="notification"):
    """Raised when a receiver did not take an event, and may take it later; names its answer."""


class NotificationRefused(NotificationFailed, reason="notification-refused", permanent=True):
    """Raised when a receiver refuses an event for good; names its answer."""


# Requests that the web application refuses


class ResourceNotFound(ApplicationError, reason="not-found", problem=NOT_FOUND):
    """Raised for an address or an object that does not exist; names it."""


class ActRefused(ApplicationError, reason="act-refused", permanent=True, problem=INVALID):
    """Raised when the object of an operator's act does not exist, or has another state; names both."""


class OperatorRequired(ApplicationError, reason="unauthorized", problem=UNAUTHORIZED):
    """Raised for a request without the operator's token, to an address that needs it."""


class RoleRequired(ApplicationError, reason="role-required", permanent=True, problem=FORBIDDEN):
    """Raised when an operator that may only read tries to act; names the act and the operator."""


class RequestForged(ApplicationError, reason="request-forged", permanent=True, problem=FORBIDDEN):
    """Raised for a form that another site sent, or that is not of this operator, or is too old."""


class MethodNotAllowed(ApplicationError, reason="not-allowed", problem=NOT_ALLOWED):
    """Raised for a request method that an address does not have."""


class UriTooLong(ApplicationError, reason="too-long", problem=TOO_LONG):
    """Raised for a request whose path and query are too long."""


class BodyRefused(ApplicationError, reason="with-body", problem=WITH_BODY):
    """Raised for a request with a body that is not read: operators may send one of a known and limited length."""


class TooManySearches(ApplicationError, reason="limited", problem=LIMITED):
    """Raised when an address has used up its rate limit; names the limit and the seconds to wait."""


# Cover art

#: What an error says about its service. `answered`: the service works, and the error concerns one item. `failed`: it
#: may concern one item or all. `away`: it concerns all. `denied`: the keys may be wrong.
Evidence = Literal["answered", "failed", "away", "denied"]


class InvalidJob(InvalidMessage):
    """Raised for a plain body of the cover art archive that cannot be read; names its line and the reason."""


class RemoteError(RetryAfterError, ApplicationError):
    """Root of the errors of the archive, and of MusicBrainz's web service and database."""

    #: What it says about its service.
    evidence: ClassVar[Evidence] = "failed"
    #: Seconds after which the job may run again without spending a retry; None if it spends one.
    free_after: float | None = None
    #: Whether the item may be the cause, and not an outage: then only the first runs cost nothing.
    may_be_own: bool = False


class ArchiveError(RemoteError, reason="archive"):
    """Raised when the archive did not serve a request, but may serve it later."""


class ArchiveUnavailable(ArchiveError, reason="archive-unavailable"):
    """Raised when the archive is unreachable or overloaded, so that other requests would fail too."""


class ArchiveRefused(ArchiveError, reason="archive-refused", permanent=True):
    """Raised when the archive refuses a request for good: malformed, spam, a dark item."""

    evidence: ClassVar[Evidence] = "answered"


class ArchiveDenied(ArchiveRefused, reason="archive-denied"):
    """Raised when the archive does not accept the keys, for one item or for all."""

    evidence: ClassVar[Evidence] = "denied"


class ArchiveNotFound(ArchiveError, reason="archive-not-found"):
    """Raised when an object or its bucket is not in the archive."""

    evidence: ClassVar[Evidence] = "answered"


class WebServiceError(RemoteError, reason="web-service"):
    """Raised when MusicBrainz's web service fails or sends an invalid answer."""


class WebServiceUnavailable(WebServiceError, reason="web-service-unavailable"):
    """Raised when MusicBrainz's web service is unreachable, overloaded or failing."""

    evidence: ClassVar[Evidence] = "away"


class WebServiceBehind(WebServiceError, reason="web-service-behind"):
    """Raised when MusicBrainz's web service does not have an entity that the database has."""


class ImageInUse(ApplicationError, reason="image-in-use", permanent=True):
    """Raised when an event asks to delete an image that MusicBrainz's database has in that item."""


class ArtNotServed(ApplicationError, reason="art-not-served", permanent=True, problem=NOT_FOUND):
    """Raised when a command needs an archive that the settings do not name; names the missing setting."""


class DatabaseFailed(RemoteError, reason="database", problem=UNAVAILABLE):
    """Raised when a read of MusicBrainz's database fails; names its host and its database."""

    evidence: ClassVar[Evidence] = "answered"


class DatabaseUnavailable(DatabaseFailed, reason="database-unavailable"):
    """Raised when MusicBrainz's database is unreachable, closed the connection or exceeded its deadline."""

    evidence: ClassVar[Evidence] = "away"


# Programs


class ServicesError(ApplicationError):
    """Raised when the private RabbitMQ or Redis cannot be installed, started or stopped; says what to do."""


class DemoFailed(ApplicationError):
    """Raised when the demo cannot go on: a deadline passed, or a site cannot be crawled."""


def lacks_descriptors(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, is that this process or host has no file descriptors left."""
    return any(isinstance(each, OSError) and each.errno in (errno.EMFILE, errno.ENFILE) for each in _causes(error))


def lacks_space(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, is that a disk of this host is full."""
    return any(
        isinstance(each, DiskFull)
        or (isinstance(each, OSError) and each.errno in (errno.ENOSPC, errno.EDQUOT))
        or getattr(each, "sqlite_errorname", "") == "SQLITE_FULL"
        for each in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the one that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
