"""Crawls of real pages, from documentation that Debian packages: compared with `wget --mirror`, and with each other."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from app.counters import TASK_RUNS, read_counts
from app.private_services import Urls
from app.redis_state.client import get_redis
from app.text.words import words
from app.topology.queues import DEAD_SET
from benchmarks import sites
from config.settings import ROOT, Settings
from tests.servers.site import HTML, PLAIN, Answer, Request, Site, failure, reply
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.programs import program
from tests.support.system import running_system

pytestmark = pytest.mark.acceptance

#: Words of a phrase that is searched.
LENGTH = 6


#: Three sites by three generators: asciidoc, Sphinx and DocBook.
REAL_SITES = {**sites.SITES, "git-doc": sites.DebianSite("git-doc", "usr/share/doc/git/html")}

#: Whole sites, and a folder of one as a site of its own: its links to other folders are broken.
PARTS = [
    ("python3-doc", "c-api"),
    *(pytest.param(name, "", marks=[pytest.mark.long, pytest.mark.timeout(900)]) for name in REAL_SITES),
]


def mirrored(url: str, folder: Path) -> set[str]:
    """Return the paths of the pages that `wget --mirror` finds, robots.txt obeyed."""
    wget = program("wget", "wget")
    # Exit code 8 means a broken link, and this site has one.
    done = subprocess.run([wget, "--mirror", "--quiet", f"--directory-prefix={folder}", url], check=False)
    assert done.returncode in (0, 8)
    root = folder / urlsplit(url).netloc
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if path.suffix in (".html", ".txt")}


class FolderSite(Site):
    """A site of the files of a folder, as a plain server has it."""

    TYPES: ClassVar = {".html": HTML, ".txt": PLAIN, ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def route(self, request: Request) -> Answer:
        path = self._folder / unquote(urlsplit(request.path).path).lstrip("/")
        if path.is_dir():
            path /= "index.html"
        if not path.is_file():
            return failure(404)
        return reply(path.read_bytes(), content_type=self.TYPES.get(path.suffix, "application/octet-stream"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "part"), PARTS)
def test_each_page_that_wget_finds_is_requested_once_and_never_before_its_delay_and_its_phrases_find_it(
    environment: dict[str, str], settings: Settings, tmp_path: Path, name: str, part: str
) -> None:
    delay = 0.02
    changed = {"TIMER_TIMEOUT": "3", "HOST_DELAY": str(delay), "SOFT_404_CHECK": "true"}
    folder = sites.unpack(REAL_SITES.get(name) or sites.python_doc(), ROOT / ".perennial" / "bench")
    with FolderSite(folder / part) as site, running_system({**environment, **changed}, settings, tmp_path) as system:
        system.post("index+crawl", url=site.url)
        system.packed(site.domain, seconds=580)
        requests = site.requests
        found = mirrored(site.url, tmp_path / "mirror")
        pages = {path.replace("/index.html", "/") for path in system.paths(site.domain)}
        assert pages == {path.replace("/index.html", "/") for path in found}
        assert len(pages) > 60
        assert max(Counter(request.path for request in requests).values()) == 1
        others = {request.path for request in requests} & {"/robots.txt", "/sitemap.xml"}
        checks = [request.path for request in requests if "/perennial-soft-404-check-" in request.path]
        assert (len(others), len(checks)) == (2, 1)
        shortest = min(after.at - before.at for before, after in itertools.pairwise(requests))
        print(f"{name}: {len(pages)} pages, {len(requests)} requests, shortest delay {shortest:.3f} s")
        assert shortest >= delay
        assert system.broker.depth(DEAD_SET) == 0

        unique = unique_phrases(system.pack(site.domain), seed=len(pages))
        assert len(unique) >= 20
        for path, phrase in unique:
            # Three words in turn name no page before the page that is named so.
            if len(set(phrase.split())) > LENGTH // 2:
                assert next(hit.path for hit in system.search(site.domain, phrase)) == path, phrase
            assert [hit.path for hit in system.search(site.domain, f'"{phrase}"')] == [path]


def unique_phrases(pack: Path, *, seed: int) -> list[tuple[str, str]]:
    """Return up to 30 phrases of texts with their paths, of 15 pages, each on one page only, names included.

    None contains a first heading of two words or more: it would name the page of that heading.
    """
    with contextlib.closing(sqlite3.connect(pack)) as database:
        select = "SELECT path, body, title, description, headings, anchors FROM pages WHERE NOT hidden"
        rows = database.execute(select).fetchall()
        phrases_of = {path: [phrases(column) for column in columns] for path, *columns in rows}
    pages_with = Counter(phrase for columns in phrases_of.values() for phrase in set(itertools.chain(*columns)))
    chosen = random.Random(seed).sample(sorted(phrases_of), 15)
    sampled = [(path, phrase) for path in chosen for phrase in phrases_of[path][0][:400:20]]
    unique = [(path, phrase) for path, phrase in sampled if pages_with[phrase] == 1]
    headings = [" ".join(words(row[4].partition("\n")[0])) for row in rows]
    names = [f" {heading} " for heading in headings if " " in heading]
    return [(path, phrase) for path, phrase in unique if not any(name in f" {phrase} " for name in names)][:30]


def phrases(text: str) -> list[str]:
    """Return each run of LENGTH consecutive words."""
    found = words(text)
    return [" ".join(found[start : start + LENGTH]) for start in range(len(found) - LENGTH + 1)]


@pytest.mark.long
@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_crawl_with_several_pages_a_message_has_the_pack_of_one_with_one_page_a_message(
    services: Urls, redis_url: str, tmp_path: Path, name: str, part: str
) -> None:
    folder = sites.unpack(REAL_SITES.get(name) or sites.python_doc(), ROOT / ".perennial" / "bench")
    packs, messages = [], []
    with FolderSite(folder / part) as site:
        for app in ("app", "tests.support.single_pages"):
            with own_vhost(services) as broker_url:
                settings = settings_for(tmp_path / app, broker_url, redis_url, services.broker_api_url)
                environment = {**environment_of(settings), "TIMER_TIMEOUT": "2"}
                with running_system(environment, settings, tmp_path / app, app=app) as system:
                    system.post("index+crawl", url=site.url)
                    pages = system.packed(site.domain, seconds=400).pages
                    packs.append(content_of(system.pack(site.domain)))
            runs = read_counts(redis_url)[TASK_RUNS]
            messages.append(sum(count for (task, *_), count in runs.items() if task == "site.page"))
            get_redis(redis_url).flushdb()
    shared, alone = packs
    rows = {table: content.total() for table, content in shared.items()}
    print(f"{name}: {pages} pages, {messages} messages, {sum(rows.values())} rows in {len(rows)} tables: {rows}")
    assert messages[0] < pages - 1 <= messages[1]  # All but the start page have `page` messages.
    assert shared.keys() == alone.keys()
    for table, content in shared.items():
        assert content == alone[table], table


def content_of(pack: Path) -> dict[str, Counter[tuple[Any, ...]]]:
    """Return the rows of each table of a pack, those of its indexes included, without ids and times of its crawl.

    Row ids are compared, too: a full pack gives them in order of quality.
    """
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    with contextlib.closing(sqlite3.connect(pack)) as database:
        names = [name for (name,) in database.execute(tables)]
        rows = {name: Counter(map(tuple, database.execute(f'SELECT * FROM "{name}"'))) for name in names}
    rows["meta"] = Counter(row for row in rows["meta"] if row[0] not in ("crawl_id", "built_at"))
    rows["stored"] = Counter((page_id, etag) for page_id, etag, _version in rows["stored"])
    return rows
