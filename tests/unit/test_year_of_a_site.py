"""A site over a year: a pack that was updated again and again is as good as a new one."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from app.pack.download import download_pack_to
from app.pack.packer import pack_full, pack_incremental
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.storage.layout import Page, content_key, page_id
from app.storage.page_parts import PageLink
from app.storage.store import ObjectStore
from tests.packs import gone, page, put
from tests.support.stores import folder_store

pytestmark = [pytest.mark.unit, pytest.mark.long, pytest.mark.timeout(1_800)]

DOMAIN: Final = "site.example"
PAGES: Final = 200
PACKS: Final = 200
#: Words, of which the first ones are frequent, as in a language.
WORDS: Final = [f"w{random.Random(number).randrange(10**9):x}" for number in range(8_000)]
WEIGHTS: Final = [1 / rank for rank in range(1, len(WORDS) + 1)]


class YearOfSite:
    """A site whose pages change, go, move and come back, by a seed."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._random = random.Random(1)
        self._versions = {f"/{number}": 0 for number in range(PAGES)}
        self._gone: list[str] = []
        put(store, *map(self._page, self._versions))

    def _page(self, path: str) -> Page:
        words = random.Random(f"{path} {self._versions[path]}")
        name, text = words.choices(WORDS[200:], k=4), words.choices(WORDS, WEIGHTS, k=600)
        # Most links stay when a text changes.
        kept = random.Random(path)
        sources = [kept] * 7 + [words]
        links = {f"/{each.randrange(PAGES)}": " ".join(each.choices(WORDS[200:], k=2)) for each in sources}
        named = tuple(PageLink(f"https://{DOMAIN}{target}", texts) for target, texts in links.items())
        return page(path, " ".join(name), " ".join(text), links=named)

    def _write(self, path: str) -> None:
        self._versions[path] = self._versions.get(path, 0) + 1
        put(self._store, self._page(path))

    def _remove(self, path: str) -> None:
        del self._versions[path]
        self._gone.append(path)
        if self._random.random() < 0.5:
            put(self._store, gone(path))
        else:
            self._store.delete(content_key(DOMAIN, page_id(f"https://{DOMAIN}{path}")))

    def go_on(self) -> None:
        """Change two pages, and remove, move or restore another one."""
        paths = sorted(self._versions)
        for path in self._random.sample(paths, 2):
            self._write(path)
        other = self._random.choice(paths)
        match self._random.randrange(4):
            case 0:
                self._remove(other)
            case 1:
                self._remove(other)
                self._write(f"{other}-moved")
            case 2 if self._gone:
                self._write(self._gone.pop(self._random.randrange(len(self._gone))))
            case _:
                self._write(f"/new-{self._random.randrange(10**9)}")


def scores(path: Path) -> dict[str, tuple[int, list[float]]]:
    """Return total and scores of queries: one and two words, frequent and rare. Pages of one score have no order."""
    words = random.Random(2)
    queries = [" ".join(words.choices(WORDS[:2_000], k=1 + number % 2)) for number in range(100)]
    with closing(PackSearcher(path, time_limit=60)) as searcher:
        found = {query: searcher.search(parse(query)) for query in queries}
    return {query: (result.total, [round(hit.score, 6) for hit in result.hits]) for query, result in found.items()}


def test_a_pack_that_was_updated_for_a_year_scores_as_a_new_one_and_is_hardly_larger(tmp_path: Path) -> None:
    store, kept, new = folder_store(tmp_path / "store"), tmp_path / "0", tmp_path / "new"
    site = YearOfSite(store)
    pack_full(store, DOMAIN, work=tmp_path)
    download_pack_to(store, DOMAIN, kept)
    for number in range(1, PACKS + 1):
        site.go_on()
        assert pack_incremental(store, DOMAIN, work=tmp_path).written
        # The searcher misses all but a few of them.
        if number % 50 == 7 or number == PACKS:
            former, kept = kept, tmp_path / f"{number}"
            updated = download_pack_to(store, DOMAIN, kept, former=former)
    pack_full(store, DOMAIN, work=tmp_path, force=True)
    fresh = download_pack_to(store, DOMAIN, new)
    assert updated.pages == fresh.pages
    assert scores(kept) == scores(new)
    # Indexes and file grow until a quarter of the rows were indexed again, and are then written as one piece.
    assert updated.size <= 1.3 * fresh.size
