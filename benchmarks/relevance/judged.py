"""The judged set: queries of several kinds over sites, with graded pages. See benchmarks/judged/README.md."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchmarkError

FOLDER = Path(__file__).parent.parent / "judged"
#: More natural questions, on other sites, too.
QUESTIONS = FOLDER / "questions"

#: Sites on which rankings are developed.
TUNING = ("python3.11-doc", "git-doc", "cmake-doc", "gimp-help-de", "debian-reference-ja")
#: Sites whose queries are not read while a ranking is developed.
UNSEEN = ("postgresql-doc-15", "gimp-help-fr")
#: The same of `QUESTIONS`.
QUESTIONS_TUNING = ("python3.11-doc", "git-doc", "cmake-doc", "python-django-doc", "sqlite3-doc")
QUESTIONS_UNSEEN = (
    "postgresql-doc-15", "varnish-doc", "postfix-doc", "libvirt-doc", "debian-handbook", "octave-doc", "borgbackup-doc",
)  # fmt: skip

KINDS = (
    "keyword", "phrase", "version number", "inflection", "two concepts", "CamelCase", "snake_case", "--option",
    "natural question", "misspelling",
)  # fmt: skip
#: Grade of the page that a person looks for. 2 is a page that is also good, 1 one that touches the subject.
BEST = 3


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """A query with the grades of the judged pages, by path without a leading slash. Other pages have the grade 0."""

    site: str
    kind: str
    q: str
    grades: Mapping[str, int]


def load(sites: Collection[str], *, unseen: bool = False, folder: Path = FOLDER) -> list[JudgedQuery]:
    """Return the queries of the sites, from files in a folder.

    Raises BenchmarkError for an unseen site, except with `unseen`. Only the benchmark's own option `--unseen` sets it:
    a ranking tuned on these queries would not be measured by them.
    """
    held_out = sorted(set(sites) & {*UNSEEN, *QUESTIONS_UNSEEN})
    if held_out and not unseen:
        raise BenchmarkError(f"{', '.join(held_out)}: held out; only `python -m benchmarks --unseen` reads the queries")
    return [query for site in sites for query in _read(folder, site)]


def paths(site: str) -> frozenset[str]:
    """Return the paths of all pages of a site, as its package had them when the pages were judged."""
    return frozenset((FOLDER / "paths" / f"{site}.txt").read_text().splitlines())


def _read(folder: Path, site: str) -> list[JudgedQuery]:
    lines = (folder / f"{site}.tsv").read_text().splitlines()
    return [_query(site, *line.split("\t")) for line in lines]


def _query(site: str, kind: str, q: str, *judgements: str) -> JudgedQuery:
    graded = (judgement.split(" ", 1) for judgement in judgements)
    return JudgedQuery(site, kind, q, {path: int(grade) for grade, path in graded})
