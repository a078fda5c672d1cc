"""One error tree: whether a failure may be retried is a property of its class."""

from __future__ import annotations

from typing import ClassVar

from app.broker.errors import ApplicationError, InvalidMessage


class InvalidUrl(InvalidMessage):
    """Raised for a URL that cannot be crawled; names the URL and the reason."""

    reason = "invalid-url"


class OutOfScope(InvalidMessage):
    """Raised for a URL outside the domain that a message names."""

    reason = "out-of-scope"


# HTTP


class FetchError(ApplicationError):
    """Raised when a page could not be had this time."""

    reason = "fetch"


class ConnectionFailed(FetchError):
    """Raised when no connection could be made, or it broke."""

    reason = "connection"


class ResponseTimeout(FetchError):
    """Raised when a response did not arrive within its deadline, in seconds."""

    reason = "response-timeout"


class ServerError(FetchError):
    """Raised for a 5xx or 429 answer; `retry_after` is in seconds, if the server gave one."""

    reason = "server-error"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


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
    problem = "broken"
    status = 503
    title = "The site's index cannot be read"
    retry_in = 30


class ObjectNotFound(StoreError):
    """Raised when an object is not in the store; names its key."""

    reason = "object-not-found"


class InvalidKey(StoreError):
    """Raised for a key or a store URL that no store can hold; names it and the reason."""

    permanent = True
    reason = "invalid-key"


class PreconditionFailed(StoreError):
    """Raised when a conditional write lost: somebody else wrote the object since it was read."""

    reason = "precondition-failed"


class PackError(ApplicationError):
    """Raised when a pack cannot be built or read."""

    reason = "pack"
    problem = "broken"
    status = 503
    title = "The site's index cannot be read"
    retry_in: ClassVar[int | None] = 30


class PackRefused(PackError):
    """Raised when a new pack would replace a better one (no pages, start page failed, under half the pages)."""

    permanent = True
    reason = "pack-refused"


class PackCorrupt(PackError):
    """Raised when a pack's checksum, schema version or structure is wrong."""

    permanent = True
    reason = "pack-corrupt"


class PackNotFound(PackError):
    """Raised when a domain has no pack: it was never indexed."""

    permanent = True
    reason = "pack-not-found"
    problem = "never-indexed"
    status = 404
    title = "The site was never indexed"
    retry_in = None


class InvalidQuery(ApplicationError):
    """Raised for a search that cannot be answered (empty, too long); says why."""

    permanent = True
    reason = "invalid-query"
    problem = "invalid"
    status = 400
    title = "The request cannot be answered as it was asked"


class SearchTimeout(ApplicationError):
    """Raised when a search took longer than its time limit, in seconds."""

    reason = "search-timeout"
    problem = "timeout"
    status = 504
    title = "The search took too long"
    retry_in = 1


class NotPlaced(ApplicationError):
    """Raised when a domain has a pack, and no searcher that answers has it; names the domain."""

    reason = "not-placed"
    problem = "not-placed"
    status = 503
    title = "The site's index is on no searcher yet"
    retry_in = 5


class NotHere(NotPlaced):
    """Raised by a searcher for a domain that it does not have; another one may. Names the domain."""

    reason = "not-here"


class SearchUnavailable(ApplicationError):
    """Raised when nobody knows which searcher has what: the orchestrator did not answer yet."""

    reason = "search-unavailable"
    problem = "unavailable"
    status = 503
    title = "The search cannot be reached"
    retry_in = 2


# Requests that the web application refuses


class ResourceNotFound(ApplicationError):
    """Raised for a path that no route of the web application answers."""

    permanent = True
    reason = "not-found"
    problem = "not-found"
    status = 404
    title = "There is nothing at this address"


class MethodNotAllowed(ApplicationError):
    """Raised for a request method other than GET and HEAD."""

    permanent = True
    reason = "not-allowed"
    problem = "not-allowed"
    status = 405
    title = "This address only answers GET and HEAD"


class UriTooLong(ApplicationError):
    """Raised for a request whose path and query are too long."""

    permanent = True
    reason = "too-long"
    problem = "too-long"
    status = 414
    title = "The address is too long"


class BodyRefused(ApplicationError):
    """Raised for a request with a body: the web application reads none."""

    permanent = True
    reason = "with-body"
    problem = "with-body"
    status = 413
    title = "This server reads no body"


class TooManySearches(ApplicationError):
    """Raised when an address has used up its rate limit; names the limit and the seconds to wait."""

    reason = "limited"
    problem = "limited"
    status = 429
    title = "Too many searches from one address"
    retry_in = 1


# Cover art


class InvalidJob(InvalidMessage):
    """Raised for a plain body of the cover art archive that cannot be read; names its line and the reason."""

    reason = "invalid-job"


class RemoteError(ApplicationError):
    """Root of what the archive and the web service raise; `retry_after` is in seconds, if the server gave one."""

    reason = "remote"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class ArchiveError(RemoteError):
    """Raised when the archive did not do what was asked, but may do it later."""

    reason = "archive"


class ArchiveUnavailable(ArchiveError):
    """Raised when the archive cannot be reached or asks everybody to slow down: other requests would fare no better."""

    reason = "archive-unavailable"


class ArchiveRefused(ArchiveError):
    """Raised when the archive will not do this however often it is asked: denied, malformed, spam, a dark item."""

    permanent = True
    reason = "archive-refused"


class ArchiveNotFound(ArchiveError):
    """Raised when an object or its bucket is not in the archive."""

    reason = "archive-not-found"


class WebServiceError(RemoteError):
    """Raised when MusicBrainz's web service did not answer as it should."""

    reason = "web-service"


class ArtNotServed(ApplicationError):
    """Raised when a command is about an archive, and the settings name none; says which setting is missing."""

    permanent = True
    reason = "art-not-served"


class EntityNotFound(ApplicationError):
    """Raised when a command names a release or an event that there is not; names it."""

    permanent = True
    reason = "entity-not-found"


class DatabaseFailed(ApplicationError):
    """Raised when MusicBrainz's database did not answer a read as it should; names its host and its database."""

    reason = "database"


class DatabaseUnavailable(DatabaseFailed):
    """Raised when MusicBrainz's database cannot be reached, broke the connection off, or took too long."""

    reason = "database-unavailable"


class ServicesError(ApplicationError):
    """Raised when the private RabbitMQ or Redis cannot be installed, started or stopped; says what to do."""

    permanent = True
    reason = "services"


class DemoFailed(ApplicationError):
    """Raised when the demo cannot go on: what was awaited did not come, or a site cannot be crawled."""

    permanent = True
    reason = "demo"


def unreachable_text(service: str, variable: str, error: BaseException, *, url_is_set: bool) -> str:
    """Return what a command says of a service that does not answer; `variable` is the setting with its URL."""
    if url_is_set:
        return f"{service} does not answer: {error}. Check {variable}"
    return f"{service} is not running: start it with `perennial up`, or set {variable}"
