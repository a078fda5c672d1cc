"""`perennial search`: answers on a terminal or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from app.crawl.urls import domain_named
from app.errors import InvalidMessage, InvalidQuery, PackNotFound
from app.pack.read import fetch_pack, read_manifest
from app.search.query import parse
from app.search.results import MAX_HITS, Hit, Results
from app.search.searcher import Searcher
from app.storage.open import open_store
from config.settings import Settings, get_settings


def register(cli: typer.Typer) -> None:
    """Add the command. A word with a minus before it is an exclusion, not an option."""
    cli.command(context_settings={"ignore_unknown_options": True})(search)


def search(
    domain: Annotated[str, typer.Argument(help="The site, as it was indexed: example.org")],
    query: Annotated[list[str], typer.Argument(help='Words, "phrases" (quoted for the shell, too), -exclusions')],
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Pages shown at most.")] = 10,
    offset: Annotated[int, typer.Option(min=0, max=MAX_HITS, help="Pages left out first.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    pack: Annotated[Path | None, typer.Option(help="Search this unpacked pack instead of the store's.")] = None,
) -> None:
    """Search an indexed site. Exit 0: found, 1: nothing found or never indexed, 2: wrong usage."""
    try:
        parsed = parse(" ".join(query))
        name = domain_named(domain)
    except (InvalidQuery, InvalidMessage) as error:
        _end(2, str(error))
    try:
        with closing(_open(name, pack, get_settings())) as searcher:
            results = searcher.search(parsed, offset=offset, limit=limit)
    except PackNotFound as error:
        _end(1, str(error) if pack else f"{name} was never indexed. To index it: perennial index https://{name}/")
    _show(results, name=name, text=parsed.text, offset=offset, as_json=as_json)


def _open(domain: str, pack: Path | None, settings: Settings) -> Searcher:
    """Open the pack given, or the store's newest, unpacked once into a cache."""
    if pack is None:
        pack = _cached(domain, settings)
    searcher = Searcher(pack, time_limit=5.0)
    if searcher.info.domain not in ("", domain):
        searcher.close()
        _end(2, f"{pack} is the pack of {searcher.info.domain}, not of {domain}")
    return searcher


def _cached(domain: str, settings: Settings) -> Path:
    store = open_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    manifest = read_manifest(store, domain)
    # By checksum, for generations of two stores have the same numbers.
    folder = settings.data_dir / "search" / domain / manifest.sha256[:16]
    found = next(folder.glob("*.sqlite"), None)
    if found is None:
        found = fetch_pack(store, domain, folder)
        _forget_others(folder)
    return found


def _forget_others(folder: Path) -> None:
    for other in folder.parent.iterdir():
        if other != folder:
            for file in other.iterdir():
                file.unlink(missing_ok=True)
            other.rmdir()


def _show(results: Results, *, name: str, text: str, offset: int, as_json: bool) -> None:
    if as_json:
        document = {"domain": name, "query": text, "offset": offset} | asdict(results)
        sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    elif results.hits:
        _print(results, offset=offset)
    if not results.total:
        _end(1, f"nothing on {name} matches: {text}")
    if not results.hits:
        _end(1, f"{name} has {results.total} pages for: {text}; none from offset {offset} on")


def _print(results: Results, *, offset: int) -> None:
    out = Console(highlight=False, soft_wrap=True)
    more = "more than " if results.capped else ""
    first, last = offset + 1, offset + len(results.hits)
    out.print(Text(f"{first}–{last} of {more}{results.total} in {results.seconds * 1_000:.0f} ms", "dim"))
    if results.relaxed:
        out.print(Text("No page has all the words. These pages have some of them.", "yellow"))
    for hit in results.hits:
        out.print()
        for line in _lines(hit):
            out.print(line)


def _lines(hit: Hit) -> Iterator[Text]:
    yield Text(_printable(hit.title or hit.path), "bold")
    yield Text(_printable(hit.url), "cyan")
    snippet = Text()
    for piece, marked in hit.snippet.pieces:
        snippet.append(_printable(piece), "bold yellow" if marked else "")
    yield snippet


def _printable(text: str) -> str:
    """Return the text without what a terminal would obey: a page must not write its own escape sequences."""
    return "".join(character if character.isprintable() else " " for character in text)


def _end(status: int, message: str) -> NoReturn:
    typer.echo(f"perennial: {message}", err=True)
    raise typer.Exit(status)
