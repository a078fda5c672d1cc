"""The events that other programs and operators get: versioned JSON objects, whose ids follow from their content."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.crawl.record.crawls import CrawlRecord, CrawlState
from app.pack.packer import PackResult

#: The namespace of the ids (RFC 9562 section 5.5).
_NAMESPACE: Final = uuid.UUID("6b1b4b3c-1f0e-5c0a-9a53-0d6d6a6f7f11")
#: Problems of one check, and characters of each, that an event carries.
_MAX_PROBLEMS: Final = 5
_MAX_TEXT: Final = 500

Count = Annotated[int, Field(ge=0)]


class PublicEvent(BaseModel):
    """One event. Within a version fields may be added, so receivers ignore those that they do not know."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)

    type: str
    version: Literal[1] = 1
    id: uuid.UUID = Field(description="The same for each delivery of this event, and for no other event.")
    at: AwareDatetime = Field(description="When it happened, in UTC.")
    site: str | None = Field(description="The domain that it is about; null for an event about the whole system.")

    @classmethod
    def of(cls, *, occasion: str = "", site: str | None = None, **fields: Any) -> Self:
        """Return the event of these fields, at this time. The id follows from them and from `occasion`.

        A task that runs again publishes the same id. `occasion` distinguishes events whose fields may recur.
        """
        kind = cls.model_fields["type"].default
        content = json.dumps([kind, site, fields, occasion], sort_keys=True, default=str)
        return cls(id=uuid.uuid5(_NAMESPACE, content), at=datetime.now(UTC), site=site, **fields)

    def payload(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return self.model_dump(mode="json")


class _CrawlEvent(PublicEvent):
    crawl_id: str
    start_url: str
    started: AwareDatetime
    state: CrawlState
    seen: Count = Field(description="URLs that the crawl found in its scope.")
    indexed: Count = Field(description="Pages that were indexed, or found unchanged.")
    dead: Count = Field(description="Messages that spent their retry budget.")
    reasons: dict[str, Count] = Field(description="Numbers of URLs by reason code, as `perennial status` shows them.")


class CrawlFinished(_CrawlEvent):
    """A crawl ended, and followed all links that it may."""

    type: Literal["crawl.finished"] = "crawl.finished"


class CrawlCut(_CrawlEvent):
    """A crawl ended without all links: at its most pages or its depth, or because it was cancelled."""

    type: Literal["crawl.cut"] = "crawl.cut"


class CrawlFailed(_CrawlEvent):
    """A crawl ended without any page with content, and with dead letters."""

    type: Literal["crawl.failed"] = "crawl.failed"


class PackWritten(PublicEvent):
    """A new pack of a site is in the store."""

    type: Literal["pack.written"] = "pack.written"
    generation: Count
    kind: Literal["full", "incremental"]
    pages: Count
    added: Count
    changed: Count
    removed: Count
    sha256: str = Field(description="Of the pack's table of frames: it identifies the version.")
    size: Count = Field(description="Bytes of the pack's compressed frames.")


class DeadSetGrew(PublicEvent):
    """A dead set has its first letters, twice as many as reported, or more after the quiet period."""

    type: Literal["dead_set.grew"] = "dead_set.grew"
    dead_set: str
    letters: Count
    before: Count = Field(description="The number that was reported before.")


class SiteUnreachable(PublicEvent):
    """A crawl got only failed connections, time-outs or server errors lately."""

    type: Literal["site.unreachable"] = "site.unreachable"
    crawl_id: str
    failing: Count = Field(description="Pages that wait for another attempt.")
    error: str = Field(description="The latest error.")


class DoctorError(PublicEvent):
    """A check of `perennial doctor` that was well, or was not made before, finds problems."""

    type: Literal["doctor.error"] = "doctor.error"
    check: str
    problems: list[str] = Field(description="The first five problems.")


#: Every event by its type, which is its routing key, too.
EVENTS: Final[Mapping[str, type[PublicEvent]]] = {
    str(each.model_fields["type"].default): each
    for each in (CrawlFinished, CrawlCut, CrawlFailed, PackWritten, SiteUnreachable, DeadSetGrew, DoctorError)
}
#: Events of success. A program acts on each of them, so a webhook has no quiet period for them.
NEWS: Final = frozenset({"crawl.finished", "pack.written"})


def crawl_ended(record: CrawlRecord) -> PublicEvent:
    """Return the event of a crawl whose record is complete."""
    counts = record.counts
    numbers: dict[str, Any] = {name: counts.get(name, 0) for name in ("seen", "indexed", "dead")}
    if counts.get("dead") and not counts.get("indexed"):
        kind: type[_CrawlEvent] = CrawlFailed
    else:
        kind = CrawlCut if counts.get("cut") else CrawlFinished
    return kind.of(
        site=record.domain,
        crawl_id=record.id,
        start_url=record.start_url,
        started=record.started,
        state=record.state,
        reasons=dict(record.reasons),
        **numbers,
    )


def pack_written(result: PackResult) -> PublicEvent:
    """Return the event of a pack that was written."""
    names = ("generation", "kind", "pages", "added", "changed", "removed", "sha256", "size")
    return PackWritten.of(site=result.domain, **{name: getattr(result, name) for name in names})


def doctor_error(check: str, problems: Sequence[str], *, occasion: str) -> PublicEvent:
    """Return the event of a check that finds problems."""
    texts = [text[:_MAX_TEXT] for text in problems[:_MAX_PROBLEMS]]
    return DoctorError.of(check=check, problems=texts, occasion=occasion)
