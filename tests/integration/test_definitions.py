"""Searches for names: what defines a name comes first and opens there, in the visitor's language."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from app.search.contract import Filters, Hit
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.storage.layout import Page
from app.storage.page_parts import Block, PageLink, Term, body_of
from tests.packs import page, write_pack

pytestmark = pytest.mark.integration

FILLER = [page(f"/filler/{number}", f"Filler {number}", f"words of filler {number}") for number in range(8)]


def hits(folder: Path, pages: list[Page], text: str, *languages: str, lang: str = "") -> tuple[Hit, ...]:
    pack = folder / "pack.sqlite"
    pack.unlink(missing_ok=True)
    with closing(PackSearcher(write_pack(pack, [*pages, *FILLER]), time_limit=30)) as searcher:
        return searcher.search(parse(text), languages=languages, filters=Filters(lang=lang)).hits


def heading(text: str, section: str) -> Block:
    return Block((text,), "h2", section)


def test_a_section_that_is_named_comes_before_pages_that_mention_the_name(tmp_path: Path) -> None:
    blocks = (
        Block(("Many directives.",)), heading("DocumentRoot Directive", "documentroot"),
        Block(("Syntax: DocumentRoot path",)), Block(("This is the folder of the files.",)),
        heading("ServerName Directive", "servername"), Block(("It names it.",)),
    )  # fmt: skip
    core = page("/mod/core.html", "core", body_of(blocks), blocks=blocks)
    mentions = page("/howto.html", "DocumentRoot and others", "DocumentRoot " * 30)
    for text in ("DocumentRoot", "documentroot", "DocumentRoot directive", "core DocumentRoot"):
        first, *_ = hits(tmp_path, [mentions, core], text)
        assert first.link == "https://site.example/mod/core.html#documentroot"
    assert hits(tmp_path, [mentions, core], "DocumentRoot")[0].snippet.text == "This is the folder of the files."


def test_a_page_that_is_named_comes_before_one_whose_title_ends_with_the_name(tmp_path: Path) -> None:
    uses = page("/a/class-use/BidiMap.html", "Uses of Interface a.BidiMap (Things API)", "BidiMap " * 20)
    own = page("/a/BidiMap.html", "BidiMap (Things API)", "Interface BidiMap and more", headings="Interface BidiMap")
    others = [page(f"/{name}.html", f"{name} (Things API)", "uses BidiMap") for name in "ABCDEFGHIJ"]
    first, *_ = hits(tmp_path, [uses, own, *others], "BidiMap")
    assert (first.path, first.title, first.opens_at) == ("/a/BidiMap.html", "BidiMap", None)


def test_sections_of_one_page_with_the_name_are_hits_of_their_own(tmp_path: Path) -> None:
    types = page(
        "/types.html",
        "Types",
        "dict.get(key) and Queue.get() are here",
        terms=(Term("dict.get", "dict.get(key)"), Term("Queue.get", "Queue.get()"), Term("dict.pop", "dict.pop()")),
    )
    found = hits(tmp_path, [types], "get")
    assert [hit.link.partition("#")[2] for hit in found] == ["Queue.get", "dict.get"]
    assert [hit.opens_at.heading for hit in found if hit.opens_at] == ["Queue.get()", "dict.get()"]
    assert [hit.opens_at.fragment for hit in hits(tmp_path, [types], "dict get") if hit.opens_at] == ["dict.get"]


def test_a_link_can_name_a_fragment_that_has_no_heading(tmp_path: Path) -> None:
    link = PageLink("https://site.example/pragma.html", "cache_size\tpragma_cache_size")
    pragma = page("/pragma.html", "Pragmas", "PRAGMA cache_size is the size of the cache", links=(link,))
    other = page("/other.html", "The cache_size", "cache_size cache_size")
    found = hits(tmp_path, [pragma, other], "PRAGMA cache_size")
    assert found[0].link == "https://site.example/pragma.html#pragma_cache_size"


def test_an_ordinary_word_in_a_heading_is_no_definition(tmp_path: Path) -> None:
    am = page("/git-am.html", "git-am", "am applies. Hooks run.", blocks=(heading("Hooks", "_hooks"),))
    guide = page("/githooks.html", "githooks", "hooks hooks hooks: all about hooks", headings="Hooks of git")
    assert hits(tmp_path, [am, guide], "hooks")[0].path == "/githooks.html"


@pytest.mark.parametrize("text", ["ordered dict", "ordered dic", "OrderedDi", "orderedd", "ordered d"])
def test_a_name_is_found_by_its_parts_and_by_its_beginning(tmp_path: Path, text: str) -> None:
    pack = tmp_path / "pack.sqlite"
    types = page("/types.html", "Types", "All types.", terms=(Term("types.OrderedDict", "class types.OrderedDict()"),))
    uses = page("/uses.html", "Ordered dicta of d and dictation", "ordered dict, ordered dictation: OrderedDict. " * 9)
    with closing(PackSearcher(write_pack(pack, [uses, types, *FILLER]), time_limit=30)) as searcher:
        assert searcher.search(parse(text)).hits[0].link == "https://site.example/types.html#types.OrderedDict"
        assert text == "ordered dict" or searcher.suggest(text)[0] == "OrderedDict"
        if " " in text:
            assert searcher.search(parse(f'"{text}"')).hits[0].path == "/uses.html"


def test_an_option_is_found_with_its_sign_and_case(tmp_path: Path) -> None:
    options = page(
        "/cmdline.html",
        "Command line",
        "-s and -S are options, re.S is none",
        terms=(Term("cmdoption-s", "-s"), Term("cmdoption-S", "-S")),
    )
    module = page("/re.html", "re", "re.S is a flag, S as well", terms=(Term("re.S", "re.S"),))
    assert hits(tmp_path, [module, options], "-S")[0].link.partition("#")[2] == "cmdoption-S"
    assert hits(tmp_path, [module, options], "re.S")[0].link.partition("#")[2] == "re.S"


ALTERNATES = [
    page("/en/mod/alias.html", "mod_alias", "The module mod_alias maps files.", lang="en"),
    page("/fr/mod/alias.html", "mod_alias", "Le module mod_alias met en correspondance.", lang="fr"),
    page("/de/mod/alias.html", "mod_alias", "Das Modul mod_alias bildet ab.", lang="de"),
    page("/index.html", "Start", "Welcome to all of it", lang="en"),
]


@pytest.mark.parametrize(
    ("languages", "lang", "path"),
    [
        (("fr-ca", "fr"), "", "/fr/mod/alias.html"),
        (("ja", "de"), "", "/de/mod/alias.html"),
        (("ja",), "", "/en/mod/alias.html"),
        ((), "", "/en/mod/alias.html"),
        (("de",), "fr", "/fr/mod/alias.html"),
    ],
)
def test_of_the_alternates_of_a_page_that_in_the_language_of_the_visitor_is_shown(
    tmp_path: Path, languages: tuple[str, ...], lang: str, path: str
) -> None:
    for text in ("mod_alias", "module OR mod_alias"):
        found = [hit for hit in hits(tmp_path, ALTERNATES, text, *languages, lang=lang) if "alias" in hit.path]
        assert [hit.path for hit in found] == [path]
        assert len(found[0].alternates) == 2
        assert {alternate.url for alternate in found[0].alternates}.isdisjoint({found[0].url})


def test_a_page_whose_words_only_one_alternate_has_is_found_in_that_language(tmp_path: Path) -> None:
    assert hits(tmp_path, ALTERNATES, "correspondance", "en")[0].path == "/fr/mod/alias.html"


def test_pages_that_name_each_other_are_alternates_and_a_page_that_is_only_named_is_none(tmp_path: Path) -> None:
    urls = {lang: f"https://site.example/{name}" for lang, name in (("en", "trees"), ("de", "baeume"))}
    start = "https://site.example/"
    both = [
        page("/trees", "Trees oak", "oak and more", lang="en", alternates=(urls["de"], start)),
        page("/baeume", "Bäume oak", "oak und mehr", lang="de", alternates=(urls["en"], start)),
        page("/", "Startseite oak", "oak", lang="fr"),
    ]
    assert {hit.path for hit in hits(tmp_path, both, "oak", "de")} == {"/baeume", "/"}
    assert {hit.path for hit in hits(tmp_path, both, "oak", "en")} == {"/trees", "/"}
