"""Sitemaps: their formats, their limits, and what a hostile one may contain."""

from __future__ import annotations

import gzip
import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.read.sitemaps import MAX_URLS, Sitemap, read_sitemap

pytestmark = pytest.mark.unit

NAMESPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
URLS = f"""<?xml version="1.0" encoding="UTF-8"?>
<urlset {NAMESPACE} xmlns:image="http://www.google.com/schemas/sitemap-image/1.1" xmlns:x="http://www.w3.org/1999/xhtml">
<url><loc> https://x.gov/a?b=1&amp;c=2 </loc><lastmod>2026-01-02</lastmod><image:image><image:loc>https://x.gov/i.png
</image:loc></image:image></url>
<url><loc>https://x.gov/new</loc><lastmod>2026-11-20T10:00:00+01:00</lastmod></url>
<url><loc>https://x.gov/ä</loc><x:link rel="alternate" hreflang="de" href="https://x.gov/de"/></url>
<!-- end --></urlset>"""
INDEX = f"<sitemapindex {NAMESPACE}><sitemap><loc>https://x.gov/s1.xml.gz</loc></sitemap></sitemapindex>"
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><link href="https://x.gov/feed" rel="self"/><entry>
<link rel="edit" href="https://x.gov/edit"/><link href="https://x.gov/1"/><updated>2026-01-01T00:00:00Z</updated></entry>
<entry><link rel="alternate" href="https://x.gov/2"/><updated>2026-02-01T00:00:00Z</updated></entry></feed>"""
RSS = """<rss version="2.0"><channel><link>https://x.gov/</link><item><title>t</title><link>https://x.gov/1</link>
<pubDate>Mon, 02 Jan 2026 00:00:00 GMT</pubDate></item><item><link>https://x.gov/2</link></item></channel></rss>"""


def row(path: str) -> str:
    return f"<url><loc>https://x.gov/{path}</loc></url>"


TEXT = "\ufeffhttps://x.gov/1\r\nno url\n\n  https://x.gov/2 \nhttps://x.gov/1"


@pytest.mark.parametrize(
    ("body", "pages", "sitemaps"),
    [
        (URLS, ("https://x.gov/new", "https://x.gov/a?b=1&c=2", "https://x.gov/ä", "https://x.gov/de"), ()),
        (INDEX, (), ("https://x.gov/s1.xml.gz",)),
        (ATOM, ("https://x.gov/2", "https://x.gov/1"), ()),
        (RSS, ("https://x.gov/1", "https://x.gov/2"), ()),
        (TEXT, ("https://x.gov/1", "https://x.gov/2"), ()),
        (f"<urlset {NAMESPACE}></urlset>", (), ()),
        (f"<urlset>{row('?a=1&b=2')}{row('&nbsp;')}{row('2')}</urlset>\n<!-- made in 1 s -->",
         ("https://x.gov/?a=1=2", "https://x.gov/", "https://x.gov/2"), ()),
    ],
    ids=["urls", "index", "atom", "rss", "text", "no URL", "bare ampersand"],
)  # fmt: skip
def test_each_format_is_read_and_pages_that_changed_last_come_first(
    body: str, pages: tuple[str, ...], sitemaps: tuple[str, ...]
) -> None:
    for data in (body.encode(), gzip.compress(body.encode())):
        assert read_sitemap(data) == Sitemap(pages, sitemaps)


@pytest.mark.parametrize(
    ("body", "pages"),
    [
        ("", ()),
        ("no URL", ()),
        ("<html><body><a href=https://x.gov/>no sitemap</a>", ()),
        ("<html><body>no sitemap</body></html>", ()),
        (URLS[: URLS.index("<url><loc>https://x.gov/ä")], ("https://x.gov/new", "https://x.gov/a?b=1&c=2")),
        (f"<urlset>{row('1')}<url><loc>https://x.gov/{row('2')}</urlset>", ("https://x.gov/1",)),
        (f"<urlset>{row('1')}{' ' * 5_000_000}{row('2')}</urlset>", ("https://x.gov/1",)),
    ],
    ids=["empty", "text", "html", "xhtml", "cut", "damaged", "hole"],
)  # fmt: skip
def test_a_sitemap_that_is_damaged_or_that_is_none_is_partial(body: str, pages: tuple[str, ...]) -> None:
    for data in (body.encode(), gzip.compress(body.encode())):
        found = read_sitemap(data)
        assert found.partial
        assert found.pages[: len(pages)] == pages


def test_a_gzip_file_that_is_cut_or_damaged_is_partial() -> None:
    # Lines that differ, so that the file has many bytes.
    lines = "".join(f"https://x.gov/{hashlib.sha256(bytes([n])).hexdigest()}\n" for n in range(200))
    data = gzip.compress(lines.encode())
    assert not read_sitemap(data).partial
    damaged = data[: len(data) // 2] + b"\0" * 100 + data[len(data) // 2 + 100 :]
    for body in (data[: len(data) // 2], data[:-8], damaged):
        assert read_sitemap(body).partial


def test_a_sitemap_in_utf_16_is_read() -> None:
    assert read_sitemap(INDEX.encode("utf-16")) == Sitemap((), ("https://x.gov/s1.xml.gz",))


def test_entities_are_not_expanded_and_no_file_is_read() -> None:
    secret = "/etc/hostname"
    for entity in (f'<!ENTITY e SYSTEM "file://{secret}">', '<!ENTITY e "https://x.gov/expanded">'):
        text = f"<!DOCTYPE urlset [{entity}]><urlset><url><loc>https://x.gov/&e;</loc></url></urlset>"
        assert read_sitemap(text.encode()).pages in ((), ("https://x.gov/",))
    bomb = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
    text = f'<!DOCTYPE urlset [<!ENTITY e0 "ha">{bomb}]><urlset><url><loc>&e9;</loc></url></urlset>'
    assert read_sitemap(text.encode()).pages == ()


def test_a_sitemap_is_read_up_to_its_limit() -> None:
    rows = "".join(f"<url><loc>https://x.gov/{n}</loc></url>" for n in range(MAX_URLS + 500))
    began = time.process_time()
    found = read_sitemap(gzip.compress(f"<urlset>{rows}</urlset>".encode(), 1))
    assert len(found.pages) == MAX_URLS
    assert found.partial
    assert time.process_time() - began < 5


def test_a_gzip_bomb_ends_at_the_limit() -> None:
    assert read_sitemap(gzip.compress(b" " * 200_000_000, 1)) == Sitemap(partial=True)


@given(st.one_of(st.binary(), st.text(st.sampled_from("<>/urlsetloc&;[] \n!D"), max_size=60).map(str.encode)))
def test_any_bytes_are_a_sitemap(body: bytes) -> None:
    read_sitemap(body)
    read_sitemap(gzip.compress(body)[:-3])
    read_sitemap(b"<urlset><url><loc>" + body)
