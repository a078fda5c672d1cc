"""Parts of the demo: the rendered site, the failing pages, the display and the summary."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.display import printable
from demo.pydoc_site import render, with_real_links
from demo.site import BROKEN, FAILURES, FLAKY, DemoSite

pytestmark = pytest.mark.unit


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DemoSite]:
    (tmp_path / "modules.json").write_text(json.dumps({"json": "JSON <encoder>"}))
    (tmp_path / "json.html").write_text("the page of json")
    (tmp_path / "secret.html").write_text("not a module")
    with DemoSite() as site:
        site.show(tmp_path)
        yield site


def test_modules_are_found_without_importing_any() -> None:
    script = "import sys; from demo.pydoc_site import module_names as m; n = m(); print('wsgiref' in sys.modules, *n)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    imported, *names = done.stdout.split()
    assert imported == "False"
    assert 200 <= len(names) <= 400
    assert {"json", "json.decoder", "wsgiref", "xml.etree.ElementTree"} <= set(names)
    assert not {"antigravity", "this", "idlelib", "turtledemo", "json.__main__", "_json", "unittest.__main__"} & set(
        names
    )


def test_a_module_is_rendered_with_its_summary_as_title_and_without_memory_addresses() -> None:
    page = render("dataclasses")
    assert page is not None
    assert "<title>dataclasses</title>" in page.html
    assert not re.search(r"0x[0-9a-f]{6}", page.html)
    tempfile = render("tempfile")
    assert tempfile is not None
    assert f"<title>tempfile — {tempfile.summary}</title>" in tempfile.html
    assert render("no.such.module") is None


def test_links_to_files_and_missing_pages_become_text() -> None:
    page = (
        '<a href=".">index</a> <a href="json.html#JSONDecoder">a</a> <a href="#-dump">b</a> '
        '<a href="https://x.org/">c</a> <a href="file:/usr/lib/json.py">d</a> <a href="_json.html">e</a>'
    )
    assert with_real_links(page, {"json"}) == page.partition('<a href="file')[0] + "d e"


def test_the_site_links_every_page_and_has_one_flaky_and_one_broken_page(site: DemoSite) -> None:
    status, start = site.answer("/")
    links = re.findall(r'href="([^"]+)"', start.decode())
    assert (status, sorted(links)) == (200, sorted([FLAKY, BROKEN, "json.html"]))
    assert "JSON &lt;encoder&gt;" in start.decode()
    assert site.pages == len(links) + 1
    assert [site.answer(f"/{FLAKY}")[0] for _ in range(FAILURES + 2)] == [503] * FAILURES + [200, 200]
    assert site.answer(f"/{BROKEN}")[0] == 500
    site.repair()
    assert site.answer(f"/{BROKEN}")[0] == 200
    assert site.answer("/json.html") == (200, b"the page of json")
    assert [site.answer(path)[0] for path in ("/secret.html", "/modules.json", "/../json.html", "/json")] == [404] * 4


def test_what_is_printed_has_no_control_characters() -> None:
    assert printable("index of /x failed \x1b[31m") == "index of /x failed  [31m"
