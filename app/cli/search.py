"""`perennial search`: search through the searchers, or in a pack's file; print hits for people or as JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from app.broker.errors import InvalidMessage
from app.cli.printing import printable
from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.client.contract import SearchClient
from app.cluster.client.local import LocalSearchClient
from app.crawl.urls import parse_domain
from app.errors import InvalidQuery, StoreError
from app.search.contract import MAX_HITS, MAX_LIMIT, Filters, Hit, SearchRequest, SearchResult, Sort
from app.sites.stored import read_site
from app.storage.open import store_of
from config.settings import get_settings

#: Seconds that the command waits for display names.
NAMES_TIMEOUT = 2.0
_USAGE = "perennial search DOMAIN WORDS..."
#: Values of a facet that are printed.
_FACET_VALUES = 6

cli = typer.Typer()


# A word with a minus before it is an exclusion, not an option.
@cli.command(context_settings={"ignore_unknown_options": True})
def search(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="DOMAIN[,DOMAIN...] WORDS...",
            help='Sites as they were indexed, then words, "phrases" (quoted for the shell, too), -exclusions.',
        ),
    ],
    *,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LIMIT, help="Number of hits, at most.")] = 10,
    offset: Annotated[int, typer.Option(min=0, max=MAX_HITS - 1, help="Number of hits to skip.")] = 0,
    sort: Annotated[Sort, typer.Option(help="Best first, or newest first.")] = "relevance",
    section: Annotated[str, typer.Option(help="Only pages below this first part of a path: `docs`.")] = "",
    lang: Annotated[str, typer.Option(help="Only pages in this language: `en`.")] = "",
    kind: Annotated[str, typer.Option("--type", help="Only pages of this content type: `text/html`.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    pack: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", exists=True, help="Search this pack's file, without services; DOMAIN may be left out."
        ),
    ] = None,
) -> None:
    """Search indexed sites. Exit 1 without hits or answer."""
    with closing(
        LocalSearchClient(pack) if pack else ClusterSearchClient.of(get_settings(), reconnects=False)
    ) as client:
        domains, q = _domains_and_query(words, client if pack else None)
        filters = Filters(section=section, lang=lang, type=kind)
        request = SearchRequest(q=q, domains=domains, offset=offset, limit=limit, sort=sort, filters=filters)
        try:
            result = client.search(request)
        except (InvalidQuery, InvalidMessage) as error:
            raise typer.BadParameter(str(error)) from error
    if as_json:
        fields = {"domains": request.domains, "query": request.q, "sort": request.sort, "offset": request.offset}
        typer.echo(json.dumps(fields | asdict(result), indent=1))
    names = {} if pack or as_json else _display_names(request.domains)
    out = Console(highlight=False, soft_wrap=True)
    for best_bet in () if as_json else result.best_bets:
        site = printable(names.get(best_bet.domain, best_bet.domain))
        out.print(Text(f"Recommended by {site}: ", "green").append(printable(best_bet.title), "bold"))
        out.print(Text(printable(best_bet.url), "cyan"))
        if best_bet.text:
            out.print(Text(printable(best_bet.text)))
        out.print()
    if not result.hits:
        for line in _silent_lines(result, names):
            typer.echo(f"perennial: {line}", err=True)
        typer.echo(f"perennial: {_no_hits_text(request, result, names)}", err=True)
        raise typer.Exit(1)
    if not as_json:
        _print_page(out, request, result, names)


def _domains_and_query(words: Sequence[str], local: SearchClient | None) -> tuple[tuple[str, ...], str]:
    """Return domains and query. With files all words are the query, unless the first one names their domains."""
    first, *rest = words
    try:
        domains = tuple(parse_domain(name) for name in first.split(","))
    except InvalidMessage as error:
        if local is None:
            raise typer.BadParameter(f"{error}. The first argument names the site: {_USAGE}") from error
        domains = ()
    if local is not None:
        packed = tuple(route.domain for route in local.routes().routes)
        if not rest or not domains or not set(domains) <= set(packed):
            return packed, " ".join(words)
    if not rest:
        raise typer.BadParameter(f"the words to search for on {first} are missing: {_USAGE}")
    return domains, " ".join(rest)


def _display_names(domains: Sequence[str]) -> Mapping[str, str]:
    """Return the display names of sites by domain, those that the store gives within NAMES_TIMEOUT."""
    settings = get_settings()
    names: dict[str, str] = {}

    def read() -> None:
        with suppress(StoreError):
            store = store_of(settings)
            for domain in domains:
                site = read_site(store, domain)
                if site and site.name:
                    names[domain] = site.name

    # The results are there already, and must not wait for a store that hangs.
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(NAMES_TIMEOUT)
    return dict(names)


def _print_page(out: Console, request: SearchRequest, result: SearchResult, names: Mapping[str, str]) -> None:
    about = "about " if result.estimated else ""
    first, last = request.offset + 1, request.offset + len(result.hits)
    out.print(Text(f"{first}–{last} of {about}{result.total} in {result.seconds * 1_000:.0f} ms", "dim"))
    for facet in result.facets:
        if facet.name == "domain":
            sites = ", ".join(f"{printable(names.get(domain, domain))} {pages}" for domain, pages in facet.counts)
            out.print(Text(f"Sites: {sites}", "dim"))
    for line in _silent_lines(result, names):
        out.print(Text(line, "yellow"))
    if result.relaxed:
        out.print(Text("No page has all the words. These pages have some of them.", "yellow"))
    if result.did_you_mean:
        out.print(Text(f"Did you mean: {printable(result.did_you_mean)}", "yellow"))
    for hit in result.hits:
        out.print()
        for text in _hit_lines(hit, names if len(result.sources) > 1 else {}):
            out.print(text)
    facets = [facet for facet in result.facets if len(facet.counts) > 1 and facet.name != "domain"]
    if out.is_terminal and facets:
        out.print()
        for facet in facets:
            values = ", ".join(f"{printable(value) or 'none'} {pages}" for value, pages in facet.counts[:_FACET_VALUES])
            more = ", …" if len(facet.counts) > _FACET_VALUES else ""
            out.print(Text(f"--{facet.name}: {values}{more}", "dim"))


def _no_hits_text(request: SearchRequest, result: SearchResult, names: Mapping[str, str]) -> str:
    sites = ", ".join(printable(names.get(pack.domain, pack.domain)) for pack in result.sources)
    if result.total:
        return f"{sites}: {result.total} hits for: {request.q}; none from offset {request.offset} on"
    filtered = "" if request.filters == Filters() else " with these filters"
    proposal = f"; did you mean: {result.did_you_mean}" if result.did_you_mean else ""
    return f"no page on {sites}{filtered} matches: {request.q}{proposal}"


def _silent_lines(result: SearchResult, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each domain that did not answer, with the reason."""
    for domain, reason in result.silent:
        named = reason if domain in reason and domain not in names else f"{names.get(domain, domain)}: {reason}"
        yield "No answer: " + printable(named)


def _hit_lines(hit: Hit, names: Mapping[str, str]) -> Iterator[Text]:
    """Yield title, address and snippet; the title with the display name of its site, if it has one in `names`."""
    title = Text(printable(hit.title or hit.path), "bold")
    if hit.domain in names:
        title.append(f" – {printable(names[hit.domain])}", "not bold")
    yield title
    address = Text(printable(hit.link), "cyan")
    if hit.modified:
        address.append(f"  {printable(hit.modified)}", "dim")
    yield address
    snippet = Text()
    for piece, marked in hit.snippet.pieces:
        snippet.append(printable(piece), "bold yellow" if marked else "")
    yield snippet
