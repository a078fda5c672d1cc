"""The values of a crawl: what a parser finds in it, what a visit came to."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.storage.layout import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Extract:
    """What an extractor finds in a document. Texts have white space collapsed; links are raw attribute values."""

    title: str = ""
    description: str = ""
    headings: tuple[str, ...] = ()
    body: str = ""
    lang: str = ""
    base: str = ""
    canonical: str = ""
    #: Directives of `<meta name="robots">` and of our own product token, lower case: noindex, nofollow, none...
    robots: frozenset[str] = frozenset()
    #: Dates that the document gives itself, as they are written, those that tell most of its present text first.
    dates: tuple[str, ...] = ()
    #: href of a and area, src of frame and iframe, in document order; rel=nofollow ones left out.
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """A visit that found a page to index. `links` are absolute, in scope, distinct, in document order."""

    page: Page
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A visit that found no page: `why` is `404`, `410`, `noindex`... Its links may still be followed."""

    why: str
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirected:
    """A visit that was sent on to `target`, an absolute URL, in scope or not."""

    target: str
    in_scope: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A visit that leaves what is stored as it is: `why` is `robots`, `content-type`, `too-large`, `403`..."""

    why: str
    detail: str = field(default="")


Visit = Indexed | Gone | Redirected | Skipped
