"""Crawls of real pages, from documentation that Debian packages, compared with `wget --mirror`."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from app.search.query import words
from app.topology.queues import DEAD_SET
from benchmarks import sites
from config.settings import ROOT, Settings
from tests.servers.site import HTML, PLAIN, Answer, Request, Site, failure, reply
from tests.support.programs import program
from tests.support.system import System, running_system

pytestmark = pytest.mark.acceptance

#: Words of a phrase that is searched.
LENGTH = 6


#: Three sites by three generators: asciidoc, Sphinx and DocBook.
REAL_SITES = {**sites.SITES, "git-doc": sites.DebianSite("git-doc", "usr/share/doc/git/html")}

#: The folder that is the root of the site, and how many pages it has at least.
PARTS = [("c-api", 60), pytest.param("", 500, marks=pytest.mark.long)]


@contextmanager
def served(part: str) -> Iterator[str]:
    """Serve a folder of the package and yield its URL; its links to other folders are broken."""
    whole = sites.python_doc()
    catalogue = {"part": replace(whole, root=f"{whole.root}/{part}")}
    with sites.serve(["part"], ROOT / ".perennial" / "bench", catalogue=catalogue) as running:
        yield running.urls["part"]


@pytest.fixture
def system(environment: dict[str, str], settings: Settings, tmp_path: Path) -> Iterator[System]:
    with running_system({**environment, "TIMER_TIMEOUT": "3"}, settings, tmp_path) as system:
        yield system


def mirrored(url: str, folder: Path) -> set[str]:
    """Return the paths of the pages that `wget --mirror` finds, robots.txt obeyed."""
    wget = program("wget", "wget")
    # Exit code 8 means a broken link, and this site has one.
    done = subprocess.run([wget, "--mirror", "--quiet", f"--directory-prefix={folder}", url], check=False)
    assert done.returncode in (0, 8)
    root = folder / urlsplit(url).netloc
    return {f"/{path.relative_to(root)}" for path in root.rglob("*") if path.suffix in (".html", ".txt")}


@pytest.mark.slow
@pytest.mark.parametrize(("part", "least"), PARTS)
def test_the_pack_has_the_pages_that_wget_finds_and_each_phrase_of_one_page_finds_it(
    system: System, tmp_path: Path, part: str, least: int
) -> None:
    with served(part) as url:
        domain = urlsplit(url).netloc
        system.post("index+crawl", url=url)
        pages = system.packed(domain, seconds=200).pages
        assert pages > least
        assert {path.replace("/index.html", "/") for path in system.paths(domain)} == {
            path.replace("/index.html", "/") for path in mirrored(url, tmp_path / "mirror")
        }
    assert system.broker.depth(DEAD_SET) == 0

    unique = unique_phrases(system.pack(domain), seed=pages)
    assert len(unique) >= 20
    for path, phrase in unique:
        assert next(hit.path for hit in system.search(domain, phrase)) == path, phrase
        assert [hit.path for hit in system.search(domain, f'"{phrase}"')] == [path]


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


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["git-doc", "python3.11-doc", "postgresql-doc-15"])
def test_each_page_that_wget_finds_is_requested_once_and_never_before_its_delay(
    environment: dict[str, str], settings: Settings, tmp_path: Path, name: str
) -> None:
    delay = 0.02
    changed = {"TIMER_TIMEOUT": "3", "HOST_DELAY": str(delay), "SOFT_404_PROBE": "true"}
    folder = sites.unpack(REAL_SITES[name], ROOT / ".perennial" / "bench")
    with FolderSite(folder) as site, running_system({**environment, **changed}, settings, tmp_path) as system:
        system.post("index+crawl", url=site.url)
        system.packed(site.domain, seconds=580)
        requests = site.requests
        found = mirrored(site.url, tmp_path / "mirror")
        with contextlib.closing(sqlite3.connect(system.pack(site.domain))) as pack:
            pages = {str(path).replace("/index.html", "/") for (path,) in pack.execute("SELECT path FROM pages")}
        assert pages == {path.replace("/index.html", "/") for path in found}
        assert max(Counter(request.path for request in requests).values()) == 1
        others = {request.path for request in requests} & {"/robots.txt", "/sitemap.xml"}
        probes = [request.path for request in requests if "/perennial-probe-" in request.path]
        assert (len(others), len(probes)) == (2, 1)
        shortest = min(after.at - before.at for before, after in itertools.pairwise(requests))
        print(f"{name}: {len(pages)} pages, {len(requests)} requests, shortest delay {shortest:.3f} s")
        assert shortest >= delay


def unique_phrases(pack: Path, *, seed: int) -> list[tuple[str, str]]:
    """Return up to 60 phrases of texts with their paths, of 30 pages, each on one page only, names included."""
    with contextlib.closing(sqlite3.connect(pack)) as database:
        rows = database.execute("SELECT path, body, title, description, headings, anchors FROM pages WHERE NOT hidden")
        phrases_of = {path: [phrases(column) for column in columns] for path, *columns in rows}
    pages_with = Counter(phrase for columns in phrases_of.values() for phrase in set(itertools.chain(*columns)))
    chosen = random.Random(seed).sample(sorted(phrases_of), 30)
    sampled = [(path, phrase) for path in chosen for phrase in phrases_of[path][0][:400:20]]
    return [(path, phrase) for path, phrase in sampled if pages_with[phrase] == 1][:60]


def phrases(text: str) -> list[str]:
    """Return each run of LENGTH consecutive words."""
    found = words(text)
    return [" ".join(found[start : start + LENGTH]) for start in range(len(found) - LENGTH + 1)]
