"""Subsections and copies of hits: where a hit opens, what is listed below it, and which addresses it stands for."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from app.crawl.read.extract.pdf import extract_pdf
from app.pack.rows import subsections
from app.search.contract import Filters, Hit, Subsection
from app.search.matcher import Matcher
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.search.subsections import best_pdf_page
from app.storage.layout import CONTENT_VERSION, Page, from_json, to_json
from app.storage.page_parts import Block
from tests.packs import page, write_pack
from tests.support.pdf import pdf

pytestmark = pytest.mark.unit


def with_headings(path: str, title: str, *headings: tuple[str, str], body: str = "") -> Page:
    """Return a page with (id, heading) pairs; the first heading is that of the page."""
    blocks = tuple(Block((text,), "h1" if at == 0 else "h2", name) for at, (name, text) in enumerate(headings))
    texts = "\n".join(text for _, text in headings)
    return page(path, title, body or texts.replace("\n", " "), headings=texts, blocks=blocks)


def hits(folder: Path, pages: list[Page], text: str) -> tuple[Hit, ...]:
    with closing(PackSearcher(write_pack(folder / "pack.sqlite", pages), time_limit=10)) as searcher:
        return searcher.search(parse(text)).hits


INSTALL = with_headings(
    "/install",
    "Installation | The Site",
    ("top", "Installation"),
    ("linux", "Install on Debian"),
    ("", "Install on Debian without an id"),
    ("mac", "Install on a Mac with a long name"),
    ("again", "Installation"),
    ("more", "Other systems"),
    ("disk image", "Install on a disk <image>"),
    ("last", "Install elsewhere"),
)


def test_a_hit_opens_at_the_heading_that_matches_more_than_its_title(tmp_path: Path) -> None:
    (hit,) = hits(tmp_path, [INSTALL], "install debian ")
    assert (hit.opens_at, hit.subsections) == (Subsection(fragment="linux", heading="Install on Debian"), ())
    assert (hit.url, hit.link) == ("https://site.example/install", "https://site.example/install#linux")


def test_a_hit_whose_title_matches_opens_at_its_top_and_lists_three_others_in_order(tmp_path: Path) -> None:
    (hit,) = hits(tmp_path, [INSTALL], "install")
    assert (hit.opens_at, hit.link) == (None, hit.url)
    assert [subsection.fragment for subsection in hit.subsections] == ["linux", "disk image", "last"]
    assert hit.url_at(hit.subsections[1]) == "https://site.example/install#disk%20image"


def test_headings_with_less_than_half_of_the_query_are_not_listed(tmp_path: Path) -> None:
    text = "the installation of anything elsewhere takes patience"
    body = with_headings("/b", "Title", ("t", "Title"), ("patience", "Patience"), body=text)
    (hit,) = hits(tmp_path, [body], "installation anything takes patience")
    assert (hit.opens_at, hit.subsections) == (None, ())


def test_subsections_survive_the_stored_form_and_leave_out_boilerplate_and_other_blocks() -> None:
    body = "Title Intro text. First Words. Second More."
    blocks = (
        Block(("Menu",), "h2", "menu", boilerplate=True),
        Block(("Title",), "h1", "title"),
        Block(("Intro text.",)),
        Block(("First",), "h2", "first"),
        Block(("Words.",), "list", "no-heading"),
        Block(("Second",), "h2", "sec\tond"),
        Block(("Second",), "h3", "second"),
        Block(("More.",)),
    )
    stored = page("/a", "Title", body, headings="Title\nFirst\nSecond", blocks=blocks)
    read = from_json(to_json(stored), parts=False)
    assert isinstance(read, Page)
    assert subsections(read) == subsections(stored) == "first\tFirst\nsecond\tSecond"


def test_a_hit_counts_the_pages_with_the_same_text_and_names_some(tmp_path: Path) -> None:
    copies = [page(f"/copy/{number:02}", "Guide", "An amber guide.") for number in range(12)]
    (hit,) = hits(tmp_path, [page("/guide", "Guide", "An amber guide."), *copies], "amber")
    assert (hit.path, hit.copies, len(hit.copy_urls)) == ("/guide", 12, 10)
    assert hit.copy_urls[0] == "https://site.example/copy/00"


GUIDES = [
    page("/guide", "Guide", "An amber guide.", lang="en"),
    page("/de/guide", "Guide", "An amber guide.", lang="de-AT", content_type="text/html"),
    page("/fr/guide", "Guide", "An amber guide.", lang="fr"),
    page("/de/amber", "Bernstein", "Amber, auf Deutsch", lang="de", content_type="text/plain"),
]


@pytest.mark.parametrize(
    ("filters", "languages", "expected"),
    [
        ({}, (), ["/de/amber", "/guide"]),
        ({}, ("it", "de"), ["/de/amber", "/de/guide"]),
        ({}, ("FR-ca", "fr", "de"), ["/de/amber", "/fr/guide"]),
        ({"lang": "de"}, ("fr",), ["/de/amber", "/de/guide"]),
        ({"section": "fr"}, (), ["/fr/guide"]),
        # One page of the group must pass all filters.
        ({"section": "fr", "lang": "de"}, (), []),
        ({"section": "de", "type": "text/html"}, (), ["/de/guide"]),
    ],
)
def test_a_group_is_found_if_one_page_of_it_passes_the_filters_and_that_page_is_shown(
    tmp_path: Path, filters: dict[str, str], languages: tuple[str, ...], expected: list[str]
) -> None:
    with closing(PackSearcher(write_pack(tmp_path / "pack.sqlite", GUIDES))) as searcher:
        found = searcher.search(parse("amber"), filters=Filters(**filters), languages=languages)
    assert sorted(hit.path for hit in found.hits) == expected
    assert found.total == len(expected)
    for hit in found.hits:
        group = {each.url for each in GUIDES[:3]} if hit.path.endswith("guide") else {hit.url}
        assert {hit.url, *hit.copy_urls} == group
        assert hit.copies == len(group) - 1


def test_facets_count_a_group_once_for_each_value_of_its_pages(tmp_path: Path) -> None:
    with closing(PackSearcher(write_pack(tmp_path / "pack.sqlite", GUIDES))) as searcher:
        facets = {each.name: each.counts for each in searcher.search(parse("amber")).facets}
        german = {each.name: each.counts for each in searcher.search(parse("amber"), filters=Filters(lang="de")).facets}
    assert facets["lang"] == (("de", 2), ("en", 1), ("fr", 1))
    assert facets["section"] == (("de", 2), ("fr", 1))
    assert german["lang"] == facets["lang"]
    assert german["type"] == (("text/html", 1), ("text/plain", 1))


def test_titles_of_hits_are_without_the_name_that_all_titles_of_the_site_share(tmp_path: Path) -> None:
    pages = [page(f"/{word}", f"About {word} | The Site", f"amber {word}") for word in ("a", "b", "c", "d")]
    found = hits(tmp_path, [*pages, page("/e", "The Site", "amber")], "amber")
    assert sorted(hit.title for hit in found) == ["About a", "About b", "About c", "About d", "The Site"]


PDF_PAGES = ("amber maple", "juniper and cedar, see Page 4 of this", "", "cedar", "juniper cedar larch")


@pytest.mark.parametrize(
    ("query", "page"), [("amber", 1), ("juniper", 2), ("larch", 5), ("cedar larch", 5), ("cedar -amber", None)]
)
def test_a_hit_in_a_pdf_opens_at_the_first_page_with_most_of_the_query(
    tmp_path: Path, query: str, page: int | None
) -> None:
    made = extract_pdf(pdf(*PDF_PAGES, title="Trees"), name="trees")
    document = Page(
        canonical_key="https://site.example/t.pdf", url="https://site.example/t.pdf", domain="site.example",
        path="/t.pdf", title=made.title, body=made.body, blocks=made.blocks, content_type="application/pdf",
        version=CONTENT_VERSION,
    )  # fmt: skip
    found = hits(tmp_path, [document], query)
    assert [hit.link for hit in found] == ([f"{document.url}#page={page}"] if page else [])


def test_a_title_that_matches_does_not_hide_the_page_of_a_pdf() -> None:
    matcher = Matcher(parse("juniper").phrases)
    assert best_pdf_page("page=2\tPage 2", "Page 1 amber Page 2 juniper", matcher) == Subsection(
        fragment="page=2", heading="Page 2"
    )
    assert best_pdf_page("linux\tPage 2", "Page 1 amber Page 2 juniper", matcher) is None
    assert best_pdf_page("", "Page 1 amber", matcher) is None


def test_of_headings_with_as_many_words_the_one_with_rarer_words_is_opened(tmp_path: Path) -> None:
    names = ["Strings", "String formatting", "Format of strings", "Format specification of numbers", "More formats"]
    headings = [(f"h{at}", name) for at, name in enumerate(names)]
    (hit,) = hits(tmp_path, [with_headings("/s", "Chapter", *headings)], "string format specification")
    assert hit.opens_at == Subsection(fragment="h3", heading="Format specification of numbers")
