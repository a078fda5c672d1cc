"""Packs of real text: Debian's documentation packages, extracted and packed by Perennial."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from app.crawl.parse.classify import classify
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.urls import Scope
from app.http.response import Response
from app.pack.packer import pack_full
from app.pack.plan import FullPackPlan
from app.storage.layout import Page, content_key, page_id, to_json
from app.storage.store import ObjectStore
from benchmarks import sites
from tests.packs import fetch_pack

#: The site of each domain.
DOMAINS = {"python.example": "python3.11-doc", "postgresql.example": "postgresql-doc-15"}


def build(store: ObjectStore, *, downloads: Path, folder: Path) -> dict[str, Path]:
    """Pack every domain into the store. Return the decompressed packs in `folder`, by domain.

    Missing packages are downloaded to `downloads`. Raises BenchmarkError when a download fails.
    """
    packs = {}
    for domain, site in DOMAINS.items():
        for page in pages(domain, sites.unpack(sites.SITES[site], downloads)):
            store.put(content_key(domain, page_id(page.canonical_key)), to_json(page))
        pack_full(store, domain, FullPackPlan(crawl_id="bench"))
        packs[domain] = fetch_pack(store, domain, folder)
    return packs


def pages(domain: str, folder: Path) -> Iterator[Page]:
    """Yield the page of each HTML file in a folder, as a crawl would extract it."""
    scope, parser = Scope(domain), LexborExtractor()
    for file in sorted(folder.rglob("*.html")):
        url = f"https://{domain}/{quote(file.relative_to(folder).as_posix())}"
        response = Response(url=url, status=200, headers={"content-type": "text/html"}, body=file.read_bytes())
        visit = classify(response, scope=scope, extractor=parser)
        if visit.page:
            yield visit.page
