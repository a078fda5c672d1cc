"""A crawl of real pages, from Debian's documentation of Python, compared with `wget --mirror`."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.search.query import words
from app.topology.queues import DEAD_SET
from benchmarks import sites
from config.settings import ROOT, Settings
from tests.support.programs import program
from tests.support.system import System, running_system

pytestmark = pytest.mark.acceptance

#: Words of a phrase that is searched.
LENGTH = 6


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

    phrases = unique_phrases(system.pack(domain), seed=pages)
    assert len(phrases) >= 20
    for path, phrase in phrases:
        assert next(hit.path for hit in system.search(domain, phrase)) == path, phrase
        assert [hit.path for hit in system.search(domain, f'"{phrase}"')] == [path]


def unique_phrases(pack: Path, *, seed: int) -> list[tuple[str, str]]:
    """Return up to 60 phrases with their paths, of 30 pages, each on one page only."""
    with contextlib.closing(sqlite3.connect(pack)) as database:
        bodies = dict(database.execute("SELECT path, body FROM pages WHERE NOT hidden"))
    phrases_of = {path: [" ".join(run) for run in runs(words(body))] for path, body in bodies.items()}
    pages_with = Counter(phrase for phrases in phrases_of.values() for phrase in set(phrases))
    chosen = random.Random(seed).sample(sorted(phrases_of), 30)
    return [(path, phrase) for path in chosen for phrase in phrases_of[path][:400:20] if pages_with[phrase] == 1][:60]


def runs(tokens: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield each run of LENGTH consecutive words."""
    for start in range(len(tokens) - LENGTH + 1):
        yield tokens[start : start + LENGTH]
