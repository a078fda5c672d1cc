"""The application's errors. `app.broker.errors` explains what `permanent`, `reason` and `problem` decide."""

from __future__ import annotations

import errno

from app.broker.errors import INVALID, TIMEOUT, UNAVAILABLE, ApplicationError, InvalidMessage, ProblemType

BROKEN = ProblemType("broken", 503, "The site's index cannot be read", retry_in=30)
NEVER_INDEXED = ProblemType("never-indexed", 404, "The site was never indexed")
NOT_PLACED = ProblemType("not-placed", 503, "The site's index is on no searcher yet", retry_in=5)
NOT_FOUND = ProblemType("not-found", 404, "There is nothing at this address")
NOT_ALLOWED = ProblemType("not-allowed", 405, "This address only answers GET and HEAD")
TOO_LONG = ProblemType("too-long", 414, "The address is too long")
WITH_BODY = ProblemType("with-body", 413, "This server reads no body")
UNAUTHORIZED = ProblemType("unauthorized", 401, "This address is for operators only")
LIMITED = ProblemType("limited", 429, "Too many searches from one address", retry_in=1)


class RetryAfterError(Exception):
    """Mixin of errors for an HTTP answer with a Retry-After field; `retry_after` is in seconds, None without it."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidUrl(InvalidMessage):
    """Raised for a URL that cannot be crawled; names the URL and the reason."""

    reason = "invalid-url"


class OutOfScope(InvalidMessage):
    """Raised for a URL outside the domain that a message names."""

    reason = "out-of-scope"


class InvalidSite(ApplicationError):
    """Raised for a site with an invalid field; names the site, the field and the reason."""

    permanent = True
    reason = "invalid-site"


class SecretMissing(ApplicationError):
    """Raised when a site names a secret that SITE_SECRETS does not have; names both."""

    reason = "secret-missing"


def lacks_descriptors(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is that this process or host has no file descriptors left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def lacks_space(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is that a disk of this host is full."""
    while error is not None:
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or isinstance(error, DiskFull) or getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
            return True
        error = error.__cause__ or error.__context__
    return False


# HTTP


class FetchError(ApplicationError):
    """Raised when a page could not be fetched this time."""

    reason = "fetch"


class ConnectionFailed(FetchError):
    """Raised when a connection failed or broke."""

    reason = "connection"


class ResponseTimeout(FetchError):
    """Raised when a response did not arrive within its deadline, in seconds."""

    reason = "response-timeout"


class ServerError(RetryAfterError, FetchError):
    """Raised for a 5xx or 429 answer."""

    reason = "server-error"


class RobotsUnavailable(FetchError):
    """Raised when robots.txt answers 5xx or not at all: RFC 9309 section 2.3.1.4 forbids crawling until it does."""

    reason = "robots-unavailable"


class ForbiddenAddress(FetchError):
    """Raised when a host's address is not public and ALLOW_PRIVATE_HOSTS does not name it."""

    permanent = True
    reason = "forbidden-address"


# Storage and packs


class StoreError(ApplicationError):
    """Raised when the object store fails."""

    reason = "store"
    problem = BROKEN


class ObjectNotFound(StoreError):
    """Raised when an object is not in the store; names its key."""

    reason = "object-not-found"


class InvalidKey(StoreError):
    """Raised for a key or a store URL that no store can hold; names it and the reason."""

    permanent = True
    reason = "invalid-key"


class ObjectDamaged(StoreError):
    """Raised for an object whose bytes are not what its key says; `key` and `etag` are empty where unknown."""

    reason = "object-damaged"

    def __init__(self, message: str, key: str = "", etag: str = "") -> None:
        super().__init__(message, key, etag)
        self.key = key
        self.etag = etag

    def __str__(self) -> str:
        return str(self.args[0])


class PreconditionFailed(StoreError):
    """Raised when a conditional write is refused: another writer changed the object since it was read."""

    reason = "precondition-failed"


class PackError(ApplicationError):
    """Raised when a pack cannot be built or read."""

    reason = "pack"
    problem = BROKEN


class DiskFull(PackError):
    """Raised when a disk has too little free space for a pack, and enough in all; names its folder."""

    reason = "disk-full"


class PackRefused(PackError):
    """Raised when a new pack would replace a better one (no pages, start page failed, under half the pages)."""

    permanent = True
    reason = "pack-refused"


class PackCorrupt(PackError):
    """Raised when a pack's checksum, schema version or structure is wrong."""

    permanent = True
    reason = "pack-corrupt"


class PackQuarantined(PackError):
    """Raised for a version of a pack whose opening ended searchers before; names the domain."""

    permanent = True
    reason = "pack-quarantined"


class PackNotFound(PackError):
    """Raised when a domain has no pack: it was never indexed."""

    permanent = True
    reason = "pack-not-found"
    problem = NEVER_INDEXED


class InvalidQuery(ApplicationError):
    """Raised for an invalid search (empty, too long); names the reason."""

    permanent = True
    reason = "invalid-query"
    problem = INVALID


class SearchTimeout(ApplicationError):
    """Raised when a search took longer than its time limit, in seconds."""

    reason = "search-timeout"
    problem = TIMEOUT


class NotPlaced(ApplicationError):
    """Raised when a domain has a pack, but no reachable searcher serves it; names the domain."""

    reason = "not-placed"
    problem = NOT_PLACED


class NotHere(NotPlaced):
    """Raised by a searcher for a domain that it does not serve, though another one may; names the domain."""

    reason = "not-here"


class SearchUnavailable(ApplicationError):
    """Raised when it is unknown which searcher has which pack: the orchestrator has not answered yet."""

    reason = "search-unavailable"
    problem = UNAVAILABLE


# Requests that the web application refuses


class ResourceNotFound(ApplicationError):
    """Raised for a path that no route of the web application answers."""

    permanent = True
    reason = "not-found"
    problem = NOT_FOUND


class OperatorRequired(ApplicationError):
    """Raised for a request without the operator's token, to an address that needs it."""

    permanent = True
    reason = "unauthorized"
    problem = UNAUTHORIZED


class CrawlNotFound(ApplicationError):
    """Raised for a domain without a crawl record; names the domain."""

    permanent = True
    reason = "crawl-not-found"
    problem = NEVER_INDEXED


class MethodNotAllowed(ApplicationError):
    """Raised for a request method other than GET and HEAD."""

    permanent = True
    reason = "not-allowed"
    problem = NOT_ALLOWED


class UriTooLong(ApplicationError):
    """Raised for a request whose path and query are too long."""

    permanent = True
    reason = "too-long"
    problem = TOO_LONG


class BodyRefused(ApplicationError):
    """Raised for a request with a body: the web application reads none."""

    permanent = True
    reason = "with-body"
    problem = WITH_BODY


class TooManySearches(ApplicationError):
    """Raised when an address has used up its rate limit; names the limit and the seconds to wait."""

    reason = "limited"
    problem = LIMITED


# Cover art


class InvalidJob(InvalidMessage):
    """Raised for a plain body of the cover art archive that cannot be read; names its line and the reason."""

    reason = "invalid-job"


class RemoteError(RetryAfterError, ApplicationError):
    """Root of the errors of the archive and of MusicBrainz's web service."""

    reason = "remote"
    #: Seconds after which the job may run again without spending a retry; None if it spends one.
    free_after: float | None = None


class ArchiveError(RemoteError):
    """Raised when the archive did not serve a request, but may serve it later."""

    reason = "archive"


class ArchiveUnavailable(ArchiveError):
    """Raised when the archive is unreachable or overloaded, so that other requests would fail too."""

    reason = "archive-unavailable"


class ArchiveRefused(ArchiveError):
    """Raised when the archive refuses a request for good: malformed, spam, a dark item."""

    permanent = True
    reason = "archive-refused"


class ArchiveDenied(ArchiveRefused):
    """Raised when the archive does not accept the keys, for one item or for all."""

    reason = "archive-denied"


class ArchiveNotFound(ArchiveError):
    """Raised when an object or its bucket is not in the archive."""

    reason = "archive-not-found"


class WebServiceError(RemoteError):
    """Raised when MusicBrainz's web service fails or sends an invalid answer."""

    reason = "web-service"


class WebServiceUnavailable(WebServiceError):
    """Raised when MusicBrainz's web service is unreachable, overloaded or failing."""

    reason = "web-service-unavailable"


class ArtNotServed(ApplicationError):
    """Raised when a command needs an archive that the settings do not name; names the missing setting."""

    permanent = True
    reason = "art-not-served"


class EntityNotFound(ApplicationError):
    """Raised when a command names an unknown release or event; names it."""

    permanent = True
    reason = "entity-not-found"


class DatabaseFailed(ApplicationError):
    """Raised when a read of MusicBrainz's database fails; names its host and its database."""

    reason = "database"
    #: As in RemoteError.
    free_after: float | None = None


class DatabaseUnavailable(DatabaseFailed):
    """Raised when MusicBrainz's database is unreachable, closed the connection or exceeded its deadline."""

    reason = "database-unavailable"


class ServicesError(ApplicationError):
    """Raised when the private RabbitMQ or Redis cannot be installed, started or stopped; says what to do."""

    permanent = True
    reason = "services"


class DemoFailed(ApplicationError):
    """Raised when the demo cannot go on: a deadline passed, or a site cannot be crawled."""

    permanent = True
    reason = "demo"


def unreachable_text(service: str, variable: str, error: BaseException, *, url_is_set: bool) -> str:
    """Return a command's text about a service that does not answer; `variable` is the setting with its URL."""
    if url_is_set:
        return f"{service} does not answer: {error}. Check {variable}"
    return f"{service} is not running: start it with `perennial up`, or set {variable}"
