"""Sitemaps and encodings: what is read of damaged, hostile and undeclared bytes."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.parse import sitemaps
from app.crawl.parse.documents import decode, prescan
from app.crawl.parse.sitemaps import MAX_URLS, Sitemap, read_sitemap
from app.crawl.urls import Scope
from app.http.response import Response

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
        (f"<urlset {NAMESPACE} />", (), ()),
        (f"<urlset>{row('?a=1&b=2')}{row('&nbsp;')}{row('2')}</urlset>\n<!-- made in 1 s -->",
         ("https://x.gov/?a=1&b=2", "https://x.gov/", "https://x.gov/2"), ()),
        (f"<urlset>{row('<![CDATA[?a=1&b=2]]>') * 2_000}{row('?a&amp;b&c')}</urlset>",
         ("https://x.gov/?a=1&b=2", "https://x.gov/?a&b&c"), ()),
    ],
    ids=["urls", "index", "atom", "rss", "text", "no URL", "an empty root", "bare ampersand", "CDATA"],
)  # fmt: skip
def test_each_format_is_read_and_pages_that_changed_last_come_first(
    body: str, pages: tuple[str, ...], sitemaps: tuple[str, ...]
) -> None:
    for data in (body.encode(), gzip.compress(body.encode())):
        assert read_sitemap(data) == Sitemap(pages, sitemaps)


@pytest.mark.parametrize("padding", [b"", bytes(512)])
def test_all_members_of_a_gzip_file_are_read(padding: bytes) -> None:
    members = [gzip.compress(f"https://x.gov/{number}\n".encode()) for number in range(3)]
    pages = ("https://x.gov/0", "https://x.gov/1", "https://x.gov/2")
    assert read_sitemap(b"".join(members) + padding) == Sitemap(pages)
    assert read_sitemap(b"".join(members)[:-4]) == Sitemap(pages, partial=True)


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


def test_all_urls_of_a_sitemap_are_read_however_long_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sitemaps, "MAX_URLS", 10)
    urls = "\n".join(f"https://x.gov/{'%D7%90' * 100}/{n}" for n in range(10))
    read = sitemaps.sitemap_of(Response("https://x.gov/urls.txt", 200, {}, urls.encode()), scope=Scope("x.gov"))
    assert (len(read.pages), read.partial) == (10, False)


def test_a_gzip_bomb_ends_at_the_limit() -> None:
    assert read_sitemap(gzip.compress(b" " * 60_000_000, 1)) == Sitemap(partial=True)


@given(st.one_of(st.binary(), st.text(st.sampled_from("<>/urlsetloc&;[] \n!D"), max_size=60).map(str.encode)))
def test_any_bytes_are_a_sitemap(body: bytes) -> None:
    read_sitemap(body)
    read_sitemap(gzip.compress(body)[:-3])
    read_sitemap(b"<urlset><url><loc>" + body)


LATE = b"<!--" + b"x" * 1_024 + b"--><meta charset=koi8-r>"

GREEK = "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί και τρέχει μακριά. " * 5
FRENCH = "Voilà un café très agréable à l'été où naît la forêt. " * 5
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю, пока он не остыл. " * 5


@pytest.mark.parametrize(
    ("body", "header", "expected"),
    [
        (codecs.BOM_UTF8 + "é".encode(), "text/html; charset=latin-1", "é"),
        (codecs.BOM_UTF16_LE + "é€".encode("utf-16le"), "", "é€"),
        (codecs.BOM_UTF16_BE + "é€".encode("utf-16be"), "text/html; charset=utf-8", "é€"),
        ("é".encode(), "text/html; charset=UTF-8", "é"),
        (b"<meta charset=utf-8>\xe9", "text/html; charset=iso-8859-1", "<meta charset=utf-8>é"),
        (b"\x93quoted\x94", 'text/html; Charset="latin1"', "“quoted”"),
        (b"<meta charset=shift_jis>" + "日本".encode("shift_jis"), "text/html", "<meta charset=shift_jis>日本"),
        (b"<meta charset=big5>" + "日本".encode("big5"), "text/html; charset=nonsense", "<meta charset=big5>日本"),
        ("<?xml version='1.0' encoding='koi8-r'?>да".encode("koi8-r"), "", "<?xml version='1.0' encoding='koi8-r'?>да"),
        (LATE + "да".encode("koi8-r"), "", LATE.decode() + "да"),
        (b"<meta charset=utf-16>" + "é".encode(), "", "<meta charset=utf-16>é"),
        ("日本".encode(), "text/html", "日本"),
        (b"caf\xe9", "text/html; charset=utf-8", "caf�"),
        (b"caf\xe9", "", "café"),
        (b"\x81\xff\x00", "text/html; charset=windows-1252", None),
        (b"", "", ""),
    ],
)  # fmt: skip
def test_encodings_are_detected_in_the_order_of_the_standard(body: bytes, header: str, expected: str | None) -> None:
    text = decode(body, header)
    if expected is not None:
        assert text == expected


@pytest.mark.parametrize(
    ("text", "name"), [(GREEK, "iso8859-7"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r"), (FRENCH, "cp1252")]
)
def test_an_undeclared_encoding_is_guessed(text: str, name: str) -> None:
    assert decode(text.encode(name)) == text


def test_an_invalid_byte_does_not_make_utf_8_another_encoding() -> None:
    assert decode(GREEK.encode() + b"\xff") == GREEK + "�"
    assert decode(GREEK.strip().encode()[:-1] + b"\xce") == GREEK.strip()[:-1] + "�"


@pytest.mark.parametrize(
    ("head", "label"),
    [
        (b"<html><head><META Charset = 'koi8-r' >", "koi8-r"),
        (b"<meta http-equiv=Content-Type content='text/html; charset=koi8-r'>", "koi8-r"),
        (b"<meta content='text/html; charset=koi8-r' http-equiv='content-type'/>", "koi8-r"),
        (b"<meta name=x content='text/html; charset=koi8-r'>", None),
        (b"<!-- <meta charset=koi8-r> --><meta charset=big5>", "big5"),
        (b"<!--> <meta charset=koi8-r>", "koi8-r"),
        (b"<a title='<meta charset=koi8-r>'><meta charset=big5>", "big5"),
        (b"<?php <meta charset=koi8-r ?><meta charset=big5>", "big5"),
        (b"</meta charset=koi8-r><metadata charset=koi8-r><meta charset=big5>", "big5"),
        (b"<meta charset=nonsense><meta charset=big5>", "big5"),
        (b"<meta charset=koi8-r charset=big5>", "koi8-r"),
        (b"<meta charset='koi8-r", None),
        (b"a < b <3 <meta/charset=koi8-r>", "koi8-r"),
        (b"<meta", None),
    ],
)
def test_the_prescan_finds_a_meta_as_browsers_do(head: bytes, label: str | None) -> None:
    assert prescan(head) == label


@given(st.binary(max_size=200), st.text(max_size=40))
def test_decoding_never_raises(body: bytes, header: str) -> None:
    decode(body, header)
    decode(b"<meta " + body, "text/html; charset=" + header)


@given(st.text())
def test_utf_8_is_decoded_unchanged(text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    expected = encoded.decode("utf-8", "replace")
    assert decode(encoded, "text/html; charset=utf-8") == expected.removeprefix("\ufeff")
