"""What a search found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from app.cli.printing import printable
from app.search.contract import Hit, SearchRequest, SearchResult

#: Values of a facet that are shown.
_VALUES = 6


def document(found: SearchResult, question: SearchRequest) -> str:
    """Return question and answer as one JSON document."""
    asked = {"domains": question.domains, "query": question.q, "sort": question.sort, "offset": question.offset}
    return json.dumps(asked | asdict(found), ensure_ascii=False, indent=1)


def show(found: SearchResult, question: SearchRequest) -> None:
    """Print a page of hits."""
    out = Console(highlight=False, soft_wrap=True)
    for line in _head(found, question):
        out.print(line)
    for hit in found.hits:
        out.print()
        for line in _lines(hit):
            out.print(line)
    for line in _foot(found) if out.is_terminal else ():
        out.print(line)


def silences(found: SearchResult) -> Iterator[str]:
    """Yield a line for each domain that did not answer, with the reason."""
    for domain, why in found.silent:
        yield "No answer: " + printable(why if domain in why else f"{domain}: {why}")


def _head(found: SearchResult, question: SearchRequest) -> Iterator[Text]:
    more = "more than " if found.capped else ""
    first, last = question.offset + 1, question.offset + len(found.hits)
    yield Text(f"{first}–{last} of {more}{found.total} in {found.seconds * 1_000:.0f} ms", "dim")
    for line in silences(found):
        yield Text(line, "yellow")
    if found.relaxed:
        yield Text("No page has all the words. These pages have some of them.", "yellow")
    if found.did_you_mean:
        yield Text(f"Did you mean: {printable(found.did_you_mean)}", "yellow")


def _lines(hit: Hit) -> Iterator[Text]:
    yield Text(printable(hit.title or hit.path), "bold")
    address = Text(printable(hit.url), "cyan")
    if hit.modified:
        address.append(f"  {printable(hit.modified)}", "dim")
    yield address
    snippet = Text()
    for piece, marked in hit.snippet.pieces:
        snippet.append(printable(piece), "bold yellow" if marked else "")
    yield snippet


def _foot(found: SearchResult) -> Iterator[Text]:
    """Yield, for people, how the pages found are spread, where there is something to choose."""
    shown = [facet for facet in found.facets if len(facet.counts) > 1]
    if shown:
        yield Text()
    for facet in shown:
        values = ", ".join(f"{printable(value) or 'none'} {pages}" for value, pages in facet.counts[:_VALUES])
        more = ", …" if len(facet.counts) > _VALUES else ""
        yield Text(f"--{facet.name}: {values}{more}", "dim")
