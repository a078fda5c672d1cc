"""A site: what an operator wants of the crawls of one domain. Invalid values are refused by field and reason."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from app.crawl.path_rules import PathRules
from app.crawl.traps import MAX_DEPTH, MAX_REDIRECTS, TrapLimits
from app.crawl.urls import MAX_REPEATED_SEGMENTS, MAX_SEGMENTS, Scope, canonical_key, parse_domain
from app.errors import InvalidSite
from app.sites.schedule import Schedule, check_schedule
from app.sites.search_fields import BestBets, FieldWeights, SynonymRules, known_best_bets, normalised_url, printable
from app.storage.reading import check_version, parsing
from app.text.humanize import parse_duration
from config import checks

#: Version of the stored format. A release reads those up to its own; fields may be added without a new version.
VERSION: Final = 1
#: URLs of a site that may be blocked, and URLs that its crawls may begin with.
MAX_BLOCKED: Final = 10_000
MAX_START_URLS: Final = 1_000
#: Characters of a display name, and of the part of the User-Agent.
_MAX_TEXT: Final = 200
#: What holds for sites that name no budgets.
_TRAPS: Final = TrapLimits()

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_SECRET_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
#: Header fields that the HTTP client writes itself.
_OWN_HEADERS = frozenset({"host", "connection", "content-length", "transfer-encoding", "user-agent", "accept-encoding"})


def _secret_names(value: dict[str, str]) -> dict[str, str]:
    for name, secret in value.items():
        if not _TOKEN.fullmatch(name) or name.lower() in _OWN_HEADERS:
            raise ValueError(f"{name!r} is not a name that can be chosen here")
        if not _SECRET_NAME.fullmatch(secret):
            # Not quoted: it may be the secret itself.
            raise ValueError(f"the value of {name} must be the name of a secret: letters, digits, '_', '.' and '-'")
    return value


def _proxy(text: str) -> str:
    checks.url_of("http", "https")(text)
    if "@" in text:
        raise ValueError("a proxy is http://host:port without a login; proxy_login names the secret with it")
    return text


def _secret_name(text: str) -> str:
    if text and not _SECRET_NAME.fullmatch(text):
        raise ValueError("expected the name of a secret: letters, digits, '_', '.' and '-'")
    return text


def _seconds(value: Any) -> Any:
    """Return the seconds of a duration such as `10m`; any other value as it is."""
    seconds = parse_duration(value) if isinstance(value, str) else None
    return value if seconds is None else seconds


_Names = Annotated[dict[str, str], AfterValidator(_secret_names)]
_Patterns = Annotated[tuple[Annotated[str, AfterValidator(PathRules.check)], ...], Field(max_length=100)]
_StartUrls = Annotated[tuple[Annotated[str, AfterValidator(normalised_url)], ...], Field(max_length=MAX_START_URLS)]


class Site(BaseModel):
    """One site. For an empty field, the setting of its meaning holds, or nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    domain: str
    name: Annotated[str, AfterValidator(printable)] = Field(
        "", max_length=_MAX_TEXT, description="Display name; empty: the domain."
    )
    state: Literal["active", "paused"] = Field("active", description="`paused`: no crawl starts by the schedule.")
    start_urls: _StartUrls = Field(
        (), description="URLs with which each crawl begins, besides the one that it is started with."
    )
    schedule: Annotated[str, AfterValidator(check_schedule)] = Field(
        "", description="An interval (`30m`, `6h`, `7d`) or a cron expression in UTC (`0 3 * * *`). Empty: none."
    )
    jitter: Annotated[float, BeforeValidator(_seconds)] = Field(
        0.0, ge=0, le=7 * 86_400, description="Seconds, or a duration: the longest delay of a scheduled start."
    )
    scope: Literal["exact", "suffix"] = Field(
        "exact", description="Links followed: the same host and port only, or also hosts below it."
    )
    include: _Patterns = Field((), description="Paths to follow: only those that one of the patterns matches.")
    exclude: _Patterns = Field((), description="Paths not to follow, also if `include` matches them.")
    delay: Annotated[float | None, BeforeValidator(_seconds)] = Field(
        None, ge=0, le=3_600, description="Seconds between two requests, as HOST_DELAY. A longer Crawl-delay counts."
    )
    concurrency: int | None = Field(None, ge=1, le=1_000, description="As HOST_CONCURRENCY.")
    max_pages: int | None = Field(None, ge=1, description="Pages of one crawl, as MAX_PAGES.")
    max_depth: int | None = Field(None, ge=1, description=f"Links from the start page; {MAX_DEPTH} by default.")
    max_query_variants: int | None = Field(
        None, ge=1, description=f"URLs of one path with two or more parameters; {_TRAPS.query_variants} by default."
    )
    max_pattern_pages: int | None = Field(
        None, ge=1, description=f"Pages with a query of one directory pattern; {_TRAPS.pattern_pages} by default."
    )
    max_identical_texts: int | None = Field(
        None, ge=1, description=f"Pages in a row with a text that was met before; {_TRAPS.identical_texts} by default."
    )
    max_redirects: int | None = Field(
        None, ge=1, le=100, description=f"Redirects in a row that are followed; {MAX_REDIRECTS} by default."
    )
    max_repeated_segments: int | None = Field(
        None,
        ge=1,
        le=MAX_SEGMENTS,
        description=f"Times that a path may have one segment; {MAX_REPEATED_SEGMENTS} by default.",
    )
    max_page_interval: Annotated[float | None, BeforeValidator(_seconds)] = Field(
        None,
        ge=60,
        le=366 * 86_400,
        description="Seconds, or a duration: how long the schedule leaves out a page that stays unchanged.",
    )
    user_agent_suffix: Annotated[str, AfterValidator(checks.user_agent)] = Field(
        "", max_length=_MAX_TEXT, description="Added to USER_AGENT after a space. The product token stays."
    )
    headers: _Names = Field({}, description="Request headers: names, each with the name of a secret.")
    cookies: _Names = Field({}, description="Cookies: names, each with the name of a secret.")
    proxy: Annotated[str, AfterValidator(_proxy)] = Field("", description="HTTP proxy of all requests to the site.")
    proxy_login: Annotated[str, AfterValidator(_secret_name)] = Field(
        "", description="Name of the secret with `user:password` for the proxy."
    )
    ca_file: Annotated[str, AfterValidator(printable)] = Field(
        "", max_length=1_000, description="File of a private certificate authority, in PEM, on the workers' hosts."
    )
    synonyms: SynonymRules = Field(
        (), description="Words and phrases that stand for each other: `tv, television`; in one direction: `tv => set`."
    )
    best_bets: BestBets = Field((), description="Pages to show above the results of some queries.")
    hidden_paths: _Patterns = Field((), description="Paths of pages that are crawled and never shown.")
    field_weights: FieldWeights = Field({}, description="Weights of fields, 0.1 to 10; only their ratios count.")
    meaning: bool = Field(False, description="Whether questions are ranked by meaning, too: `perennial[meaning]`.")
    search_report: bool = Field(False, description="Whether searches without results and clicks are counted.")
    blocked: tuple[str, ...] = Field(
        (), max_length=MAX_BLOCKED, description="URLs that are never requested or found: `perennial site block`."
    )
    created: datetime = Field(
        default_factory=lambda: datetime.now(UTC).replace(microsecond=0), description="When the site was added."
    )

    @model_validator(mode="after")
    def _check_urls(self) -> Self:
        if self.domain != parse_domain(self.domain):
            raise ValueError(f"domain {self.domain!r}: expected {parse_domain(self.domain)!r}")
        for best_bet in self.best_bets:
            if self.blocks(best_bet.url):
                raise ValueError(f"best_bets: {best_bet.url} is blocked")
        if self.created.tzinfo is None:
            raise ValueError("created: it has no time zone")
        return self

    @classmethod
    def of(cls, domain: str, fields: Mapping[str, Any]) -> Site:
        """Return the site with these fields; raises InvalidSite, which names the field and the reason."""
        name = parse_domain(domain)
        try:
            site = cls(**{**fields, "domain": name})
        except ValidationError as error:
            raise _invalid_site(name, error) from None
        if "*" in name:  # A browser takes it as a part of a name.
            reason = "it cannot have a wildcard: `scope=suffix` is for hosts below a domain"
            raise InvalidSite(f"{name}: domain: {reason}", {"domain": reason})
        named = [("start_urls", url) for url in site.start_urls]
        named += [("blocked", url) for url in site.blocked]
        named += [("best_bets", best_bet.url) for best_bet in site.best_bets]
        for field, url in named:
            if not Scope(name, mode=site.scope).contains(url):
                reason = f"{url} is not in the scope {site.scope!r} of the domain"
                raise InvalidSite(f"{name}: {field}: {reason}", {field: reason})
        return site

    def changed(self, fields: Mapping[str, Any]) -> Site:
        """Return the site with other values of these fields; raises InvalidSite."""
        return Site.of(self.domain, {**self.fields(), **fields})

    def fields(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, but not the domain, as values of JSON."""
        named = self.model_dump(mode="json", exclude_defaults=True, exclude={"domain"})
        return named | {"created": self.created.isoformat()}

    @property
    def seeds(self) -> tuple[str, ...]:
        """The start URLs, or the root of the domain without any."""
        return self.start_urls or (f"https://{self.domain}/",)

    def next_start(self, last: datetime | None) -> datetime | None:
        """Return when the next crawl is due after a start at `last`, None without a schedule or while it is paused.

        So it is for a start beyond the calendar, which comes from a time that was entered wrongly.
        """
        if not self.schedule or self.state == "paused":
            return None
        schedule = Schedule(self.schedule, self.jitter)
        with suppress(OverflowError, RuntimeError):  # A cron expression that finds no date raises the latter.
            return schedule.next_start(self.domain, last) if last else schedule.first_start(self.domain, self.created)
        return None

    def blocks(self, url: str) -> bool:
        """Return whether a URL is blocked."""
        return canonical_key(url) in self.blocked

    def with_blocked(self, url: str, *, blocked: bool) -> Site:
        """Return the site with this URL blocked, or no longer blocked; raises InvalidSite and InvalidUrl."""
        key = canonical_key(url)
        others = tuple(each for each in self.blocked if each != key)
        return self.changed({"blocked": (*others, key) if blocked else others})

    def to_json(self) -> bytes:
        """Serialise with sorted keys."""
        named = {"version": VERSION, "domain": self.domain, **self.fields()}
        return json.dumps(named, sort_keys=True, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Site:
        """Read the output of `to_json`, ignoring fields of later releases; raises ObjectDamaged for any other bytes."""
        with parsing("a site", data):
            named: dict[str, Any] = json.loads(data)
            check_version("site", named["version"], VERSION)
            fields = {name: value for name, value in named.items() if name in cls.model_fields}
            fields["best_bets"] = known_best_bets(fields.get("best_bets", ()))
            return cls(**fields)


def _invalid_site(domain: str, error: ValidationError) -> InvalidSite:
    """Return the error with the reason of each fault, without the value: it may be a password in the wrong place.

    By field, the reason of an element begins with its place: `2: it is empty`.
    """
    texts: list[str] = []
    by_field: dict[str, list[str]] = {}
    for wrong in error.errors(include_input=False):
        path = ".".join(str(part) for part in wrong["loc"])
        reason = wrong["msg"].removeprefix("Value error, ")
        if wrong["type"] == "extra_forbidden":
            fields = [each for each in Site.model_fields if each != "domain"]
            reason = f"unknown field; the fields are {', '.join(fields)}" if len(wrong["loc"]) == 1 else "unknown field"
        texts.append(f"{path}: {reason}" if path else reason)
        field, _, element = path.partition(".")
        if field:
            by_field.setdefault(field, []).append(f"{element}: {reason}" if element else reason)
    reasons = {field: "; ".join(each) for field, each in by_field.items()}
    return InvalidSite(f"{domain}: {'; '.join(texts)}", reasons)
