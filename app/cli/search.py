"""`perennial search`: answers on a terminal or as JSON, from the searchers or from a pack's file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from app.broker.errors import InvalidMessage, RequestTimedOut
from app.cli.search_view import document, show, silences
from app.cluster.client.cluster import ClusterSearchClient
from app.cluster.client.contract import SearchClient
from app.cluster.client.local import LocalSearchClient
from app.crawl.urls import parse_domain
from app.errors import InvalidQuery, NotPlaced, PackNotFound, SearchUnavailable
from app.pack.fetch import decompress
from app.search.contract import MAX_HITS, Filters, SearchRequest, SearchResult, Sort
from config.settings import get_settings

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
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Pages shown at most.")] = 10,
    offset: Annotated[int, typer.Option(min=0, max=MAX_HITS - 1, help="Pages left out first.")] = 0,
    sort: Annotated[Sort, typer.Option(help="The best first, or the newest.")] = "relevance",
    section: Annotated[str, typer.Option(help="Only pages below this first part of a path: `docs`.")] = "",
    lang: Annotated[str, typer.Option(help="Only pages in this language: `en`.")] = "",
    kind: Annotated[str, typer.Option("--type", help="Only pages of this content type: `text/html`.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    pack: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Search this pack's file, without services; DOMAIN may be left out."),
    ] = None,
) -> None:
    """Search indexed sites. Exit 0: found, 1: nothing found, never indexed or nobody answers, 2: wrong usage."""
    with _finder(pack or []) as finder:
        domains, text = _asked(words, finder if pack else None)
        filters = Filters(section=section, lang=lang, type=kind)
        question = SearchRequest(q=text, domains=domains, offset=offset, limit=limit, sort=sort, filters=filters)
        found = _found(finder, question)
    _show(found, question, as_json=as_json)


@contextmanager
def _finder(packs: Sequence[Path]) -> Iterator[SearchClient]:
    """Lend what finds: in these files, or through the searchers."""
    if not packs:
        with closing(ClusterSearchClient.of(get_settings())) as remote:
            yield remote
        return
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            yield stack.enter_context(closing(LocalSearchClient([_unpacked(pack, folder) for pack in packs])))
    except FileNotFoundError as error:
        raise PackNotFound(f"{error.filename}: no such file") from error


def _unpacked(pack: Path, folder: Path) -> Path:
    """Return the database; a pack as it lies in the store is compressed."""
    if pack.suffix != ".zst":
        return pack
    target = folder / pack.name.removesuffix(".zst")
    decompress(pack.read_bytes(), target)
    return target


def _asked(words: Sequence[str], local: SearchClient | None) -> tuple[tuple[str, ...], str]:
    """Return domains and query. With files all words are the query, unless the first one names their domains."""
    first, *rest = words
    try:
        domains = tuple(parse_domain(name) for name in first.split(","))
    except InvalidMessage as error:
        if local is None:
            _end(2, str(error))
        domains = ()
    if local is not None:
        there = tuple(route.domain for route in local.routes().routes)
        if not rest or not domains or not set(domains) <= set(there):
            return there, " ".join(words)
    if not rest:
        _end(2, f"what is to be searched for on {first}? perennial search DOMAIN WORDS...")
    return domains, " ".join(rest)


def _found(finder: SearchClient, question: SearchRequest) -> SearchResult:
    """Search; an error that somebody can mend says how."""
    try:
        return finder.search(question)
    except (InvalidQuery, InvalidMessage) as error:
        _end(2, str(error))
    except PackNotFound as error:
        known = {route.domain for route in finder.routes().routes}
        unknown = [domain for domain in question.domains if domain not in known]
        orders = "; ".join(f"perennial index --crawl https://{domain}/" for domain in unknown)
        _end(1, f"{error}. To index it: {orders}")
    except NotPlaced as error:
        _end(1, f"{error}\nperennial searchers shows where every pack is")
    except (SearchUnavailable, RequestTimedOut) as error:
        _end(
            1,
            f"{error}\nAre the orchestrator and a searcher running? perennial up starts them, perennial searchers shows"
            " them. A pack's file can be searched without them: --pack FILE",
        )


def _show(found: SearchResult, question: SearchRequest, *, as_json: bool) -> None:
    if as_json:
        typer.echo(document(found, question))
    elif found.hits:
        show(found, question)
    sites = ", ".join(info.domain for info in found.sources)
    if not found.total:
        for silence in silences(found):
            typer.echo(f"perennial: {silence}", err=True)
        filtered = "" if question.filters == Filters() else ", filtered so,"
        meant = f"; did you mean: {found.did_you_mean}" if found.did_you_mean else ""
        _end(1, f"nothing on {sites}{filtered} matches: {question.q}{meant}")
    if not found.hits:
        _end(1, f"{sites}: {found.total} pages for: {question.q}; none from offset {question.offset} on")


def _end(status: int, message: str) -> NoReturn:
    typer.echo(f"perennial: {message}", err=True)
    raise typer.Exit(status)
