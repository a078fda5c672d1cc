"""PDF documents: a section for each page, within limits of time and memory."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from app.crawl.parse.classify import FetchResult, Limits, classify
from app.crawl.parse.extract import pdf as extraction
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.crawl.parse.extract.pdf import UnreadablePdf, extract_pdf
from app.crawl.urls import Scope
from app.http.response import Response
from tests.support.pdf import pdf

pytestmark = pytest.mark.unit


def classified(
    body: bytes, content_type: str = "application/pdf", *, truncated: bool = False, **headers: str
) -> FetchResult:
    named = {"content-type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    response = Response("https://x.gov/files/trees.pdf", 200, named, body, truncated)
    return classify(response, scope=Scope("x.gov"), extractor=LexborExtractor(), limits=Limits())


@pytest.mark.parametrize("label", ["application/pdf", "application/octet-stream", ""])
def test_a_pdf_is_indexed_with_a_section_for_each_page(label: str) -> None:
    found = classified(pdf("Amber trees", [], ["Cedar", "and hazel"], title="All trees"), label)
    assert found.page
    page = found.page
    assert (page.title, page.content_type, page.modified) == ("All trees", "application/pdf", "2026-03-01")
    assert [(block.id, block.lines) for block in page.blocks if block.id] == [
        ("page=1", ("Page 1",)), ("page=3", ("Page 3",)),
    ]  # fmt: skip
    assert page.body == "Page 1 Amber trees Page 3 Cedar and hazel"
    named = classified(pdf("Amber")).page
    assert named
    assert named.title == "trees.pdf", "without a title, it has its file name"


def test_a_pdf_that_cannot_be_indexed_has_a_reason() -> None:
    damaged = classified(b"%PDF-1.4 nothing")
    assert damaged.state == "skipped"
    assert damaged.reason == "unreadable"
    assert "Failed to load document" in damaged.detail
    assert classified(pdf([])) == FetchResult("skipped", "empty")
    assert classified(pdf("Amber"), truncated=True) == FetchResult(
        "skipped", "too-large", f"over {len(pdf('Amber'))} bytes"
    )
    assert classified(pdf("Amber"), x_robots_tag="noindex").reason == "noindex"
    assert classified(pdf("Amber"), "text/html") == FetchResult("skipped", "content-type", "text/html")


def test_300_pages_take_less_than_two_seconds_of_cpu_time() -> None:
    lines = [f"Line {number} about amber, cedar, hazel and other trees of the wood" for number in range(45)]
    document = pdf(*[lines] * 300)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(extract_pdf(document, name="").body) > 800_000
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


#: In place of the process that reads a PDF: its environment is the title, its open files are the pages.
REPORT = """
import json, os
files = [str(number) for number in range(3, 100) if os.path.exists(f"/proc/self/fd/{number}")]
# The interpreter itself may set LC_CTYPE.
print(json.dumps({"title": " ".join(os.environ.keys() - {"LC_CTYPE"}), "changed": "", "pages": files}))
"""


def test_the_process_that_reads_a_pdf_gets_no_secrets_and_no_open_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "report.py").write_text(REPORT)
    monkeypatch.setattr(extraction, "_PROCESS", tmp_path / "report.py")
    monkeypatch.setenv("SITE_SECRETS", "hidden")
    with (tmp_path / "open").open("w") as opened:
        os.set_inheritable(opened.fileno(), True)
        found = extract_pdf(b"", name="")
    assert (found.title, found.body) == ("", "")


@pytest.mark.parametrize(("limit", "value"), [("CPU_SECONDS", 0), ("MEMORY", 1 << 22), ("SECONDS", 0.01)])
def test_a_pdf_beyond_the_limits_is_given_up(monkeypatch: pytest.MonkeyPatch, limit: str, value: float) -> None:
    monkeypatch.setattr(extraction, limit, value)
    with pytest.raises(UnreadablePdf):
        extract_pdf(pdf(*["Amber"] * 1_000), name="")
