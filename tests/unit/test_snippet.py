"""What a hit shows: its snippet, and the headings at which it opens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.crawl.parse.extract.pdf import extract_pdf
from app.pack.rows import subsections
from app.search import excerpt, passage_scorer
from app.search.contract import Filters, Hit, Subsection
from app.search.matcher import Matcher
from app.search.passage_scorer import WIDTH, Passage
from app.search.query import Phrase, parse
from app.search.snippet import Snippet, best_snippet, first_paragraph, matching_lines
from app.search.subsections import best_pdf_page
from app.storage.layout import CONTENT_VERSION, Page, from_json, to_json
from app.storage.page_parts import Block, body_of
from app.text.lines import END, HEADING, OTHER, SENTENCE
from app.text.words import fold, spelled_out, words
from tests.packs import page, searching
from tests.support.pdf import pdf

pytestmark = pytest.mark.unit

FILLER = "Nothing of note is said in this sentence, nor in the next. "
WORDS = st.sampled_from(
    ["find", "Fínd", "me", "finder", "it", "<b>", "a&b", "é", "x" * 300, ". ", SENTENCE, HEADING, OTHER, "und", "–"]
)
TEXTS = st.lists(st.one_of(WORDS, st.text(max_size=12)), max_size=120).map(" ".join)


#: Texts that consist mostly of query words.
DENSE = st.lists(st.sampled_from(["find", "me", "it", "me me", " ", "finder", "me\u0300"]), max_size=25).map(" ".join)
STRETCH = 60


def cut(text: str, query: str, *, description: str = "") -> Snippet:
    return best_snippet((description, text), Matcher(parse(query).phrases))


def marked(snippet: Snippet) -> list[str]:
    return [text for text, is_marked in snippet.pieces if is_marked]


@given(TEXTS, st.sampled_from(["find ", "fin", "find me ", '"find me" it ']))
def test_a_snippet_is_a_part_of_the_page_with_its_matches_marked(text: str, typed: str) -> None:
    text = text.encode(errors="replace").decode()
    query = parse(typed)
    snippet = best_snippet(("", text), Matcher(query.phrases))
    assert "".join(piece for piece, _ in snippet.pieces) == snippet.text
    assert all(piece for piece, _ in snippet.pieces)
    inner = snippet.text.removeprefix("…\u00a0").removesuffix("\u00a0…")
    # Without sentences, lines without a word are left out.
    whole, with_words = (" ".join(" ".join(lines).split()) for lines in ([text], filter(words, END.split(text))))
    assert inner in with_words or all(part in whole for part in inner.split(" … "))
    assert len(inner) <= WIDTH
    matcher = set(words(" ".join(query.words)))
    for piece in marked(snippet):
        assert all(word in matcher or word.startswith("fin") for word in words(piece))
    found = set(words(snippet.text))
    if len(query.words) == 1 and query.words[0] in found:
        assert snippet.marks


def test_the_passage_with_all_words_closest_together_is_shown() -> None:
    text = f"apple {FILLER * 9} pear {FILLER * 9} An apple and a pear met. {FILLER * 9} apple pear apple"
    assert marked(cut(text, "apple pear ")) == ["apple pear apple"]
    assert "An apple and a pear met." in cut(text.removesuffix(" apple pear apple"), "apple pear ").text


def test_a_snippet_begins_at_the_start_of_a_sentence_nearby() -> None:
    snippet = cut(f"{FILLER * 9}Then it was found here. {FILLER * 9}", "found ")
    assert snippet.text == f"{FILLER}Then it was found here. {FILLER * 2}".rstrip()
    long = "a clause that goes on, " * 30
    assert cut(f"{long} found, {long}", "found ").text.startswith("…\u00a0")


def test_a_snippet_is_of_sentences_with_a_match_not_of_other_lines_around_them() -> None:
    lines = (
        *(("Amber", HEADING), ("Contents", OTHER), ("About amber", OTHER), ("Amber is old.", SENTENCE)),
        *(
            ("amber(size=1)", OTHER),
            ("Trees, e.g. pines, make it.", SENTENCE),
            ("Use", HEADING),
            ("Amber glows.", SENTENCE),
        ),
    )
    text = "".join(f"{line}{end}" for line, end in lines)
    assert cut(text, "amber ").text == "Amber is old. … Trees, e.g. pines, make it."
    assert cut(text, "contents ").text == "Contents … Amber is old."
    shown = best_snippet(("", text), Matcher(parse("use ").phrases), title="Use")
    assert (shown.text, shown.marks) == ("Amber is old. … Trees, e.g. pines, make it.", ())
    assert cut(f"Amber{OTHER}Pines{OTHER}", "pines ").text == "Pines"
    assert cut(f"Pines{OTHER}/{OTHER}Amber{OTHER}¶{OTHER}", "pines ").text == "Pines Amber"


def test_a_hit_that_opens_at_a_section_shows_its_first_sentences(tmp_path: Path) -> None:
    blocks = (
        Block(("Trees",), "h1"), Block(("Here are trees in general.",)), Block(("Amber trees",), "h2", "amber"),
        Block(("tree(kind)",)), Block(("They are all very old.",)), Block(("Pines",), "h2", "pines"),
        Block(("Some old pines stand at the coast.",)),
    )  # fmt: skip
    trees = page("/trees", "Trees", body_of(blocks), headings="Trees\nAmber trees\nPines", blocks=blocks)
    (hit,) = hits(tmp_path, [trees], "amber trees")
    assert (hit.link, hit.snippet.text) == ("https://site.example/trees#amber", "They are all very old.")


def test_nothing_follows_a_heading_without_a_name() -> None:
    body = f"Code: x{OTHER}It has a sentence with many plain words.{SENTENCE}"
    assert first_paragraph(body, "", Matcher(())) is first_paragraph(body, "()", Matcher(())) is None


def test_the_rarer_of_two_distant_words_is_shown() -> None:
    text = f"common {FILLER * 9} common {FILLER * 9} rare {FILLER * 9} common"
    assert marked(cut(text, "common rare ")) == ["rare"]


@pytest.mark.parametrize(
    ("text", "query", "marks"),
    [
        ("Das Café ist offen", "cafe ", ["Café"]),
        ("Das Cafe\u0301 ist offen", "café ", ["Cafe\u0301"]),
        ("installing it", "inst", ["installing"]),
        ("installing it", "inst ", []),
        ("import os.path now", "os.path ", ["os.path"]),
        ("path os", "os.path ", []),
        ("ΣΊΣΥΦΟΣ", "σίσυφος ", ["ΣΊΣΥΦΟΣ"]),
        ("the cathedral", "cat ", []),
        ("one two three", "two three ", ["two three"]),
    ],
)
def test_marks_are_where_fts5_matches(text: str, query: str, marks: list[str]) -> None:
    assert marked(cut(text, query)) == marks


def test_a_german_word_is_marked_in_its_other_spelling() -> None:
    matcher = Matcher(parse("grosse straße ").with_forms(["german"]).phrases)
    assert marked(best_snippet(("", "Die großen Häuser der Strasse."), matcher)) == ["großen", "Strasse"]


def test_a_snippet_without_a_match_is_the_beginning_of_the_page() -> None:
    snippet = cut(FILLER * 9, "absent ")
    assert snippet.text.startswith("Nothing of note")
    assert snippet.marks == ()
    assert cut("", "absent ", description="What it is about").text == "What it is about"
    assert cut("", "absent ").text == ""
    assert cut(f"Amber{HEADING}Pines{OTHER}¶{OTHER}Oaks{OTHER}", "absent ").text == "Amber Pines Oaks"


def test_a_description_with_all_words_is_preferred_to_the_body() -> None:
    snippet = cut(f"{FILLER}A pear, then an apple.", "apple pear ", description="About apple pear")
    assert snippet.text == "About apple pear"


def test_a_match_deep_in_a_long_page_is_found() -> None:
    assert marked(cut(f"{FILLER * 10_000} needle", "needle ")) == ["needle"]


def test_an_endless_word_is_cut() -> None:
    snippet = best_snippet(("x" * 10_000,), Matcher((Phrase(("xx",), prefix=True),)))
    assert len(snippet.text) <= WIDTH + 2


@given(TEXTS, st.sampled_from(["fin", "find me ", "finding it", '"find me" it und', "me finder. find", "unds finde "]))
def test_the_fast_matcher_finds_what_the_pattern_finds(text: str, typed: str) -> None:
    matcher = Matcher(parse(typed).with_forms(["english", "german"]).phrases)
    assert matcher.matches(fold(text)) == matches_by_pattern(matcher, text)


def matches_by_pattern(matcher: Matcher, text: str) -> list[tuple[int, int, int]]:
    spelled, offset = spelled_out(fold(text))
    found = matcher.pattern.finditer(spelled)
    return [(offset(match.start()), offset(match.end()), match.lastindex or 0) for match in found]


def passages_of_stretch(text: str, phrases: tuple[Phrase, ...], width: int) -> Iterator[Passage]:
    """Yield every passage by the definition: each match with the earlier matches that it needs."""
    found = matches_by_pattern(Matcher(phrases), text)
    everywhere = Counter(phrase for _, _, phrase in found)
    for last, (_, end, _) in enumerate(found):
        first = next(at for at in range(last + 1) if end - found[at][0] <= width or at == last)
        while found[first][2] in {phrase for _, _, phrase in found[first + 1 : last + 1]}:
            first += 1
        held = {phrase for _, _, phrase in found[first : last + 1]}
        rarity = sum(1 / everywhere[phrase] for phrase in everywhere if phrase in held)
        yield Passage(found[first][0], end, (len(held), rarity, found[first][0] - end))


def passages_of_text(text: str, phrases: tuple[Phrase, ...], width: int) -> Iterator[Passage]:
    for offset in range(0, len(text), STRETCH):
        found = list(passages_of_stretch(text[offset : offset + STRETCH + width], phrases, width))
        yield from (Passage(each.start + offset, each.end + offset, each.score) for each in found)
        if any(each.score[0] == len(phrases) for each in found):
            return


@given(
    st.tuples(st.just("") | DENSE, DENSE),
    st.sampled_from(["fin", "find me ", "me it ", '"find me" me ', '"me me me" me it ']),
    st.sampled_from([16, WIDTH]),
    st.sampled_from([1, 9, 20]),
)
@example(("", f"me me {FILLER[:30]} me it"), "me it ", 16, 20)
@example(("me and it", "me it"), "me it ", WIDTH, 20)
@example(("me it it", "Here me it once"), "me it ", WIDTH, 20)
def test_reading_a_text_in_pieces_gives_the_same_snippet_as_reading_all_of_it(
    texts: tuple[str, str], typed: str, width: int, piece: int
) -> None:
    phrases = parse(typed).phrases
    passages = [(each, text) for text in texts for each in passages_of_text(text, phrases, width)]
    pieces = patch.multiple(passage_scorer, _STRETCH=STRETCH, _PIECE=piece, WIDTH=width)
    with pieces, patch.object(excerpt, "WIDTH", width):
        snippet = best_snippet(texts, Matcher(phrases))
        if passages:
            passage, text = max(passages, key=lambda pair: pair[0].score)
            assert snippet.text == excerpt.cut_sentences(text, passage)
        else:
            assert not snippet.marks


@given(TEXTS, st.sampled_from(["fin", "find me ", '"find me" it und', '"find me it" me ', "it "]))
@example("find\nme\nit", '"find me it" me ')
@example("One two\none\ntwo\nThree, four\r\nfive", '"one two" three ')
@example("one\ntwo", '"one two" three ')
def test_a_line_is_kept_if_it_matches_by_itself(text: str, typed: str) -> None:
    phrases = parse(typed).phrases
    kept = tuple(line for line in text.splitlines() if matches_by_pattern(Matcher(phrases), line))
    assert matching_lines(text, Matcher(phrases)) == kept


@given(st.text(st.one_of(st.characters(), st.sampled_from("aÉé Σσς\u0300İß“—\u01a0\ud800"))))
def test_a_text_is_folded_character_by_character(text: str) -> None:
    assert fold(text) == "".join(map(fold, text))


def with_headings(path: str, title: str, *headings: tuple[str, str], body: str = "") -> Page:
    """Return a page with (id, heading) pairs; the first heading is that of the page."""
    blocks = tuple(Block((text,), "h1" if at == 0 else "h2", name) for at, (name, text) in enumerate(headings))
    texts = "\n".join(text for _, text in headings)
    return page(path, title, body or texts.replace("\n", " "), headings=texts, blocks=blocks)


def hits(folder: Path, pages: list[Page], text: str) -> tuple[Hit, ...]:
    with searching(folder / "pack.sqlite", pages) as searcher:
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


def test_of_subsections_with_one_heading_the_first_is_listed(tmp_path: Path) -> None:
    readers = [("file", "files()"), ("zip", "files()"), ("names", "is_file()"), ("tar", "files()")]
    (hit,) = hits(tmp_path, [with_headings("/r", "Readers", ("r", "Readers"), *readers)], "file")
    assert hit.opens_at == Subsection(fragment="file", heading="files()")
    assert [subsection.fragment for subsection in hit.subsections] == ["names"]


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
    with searching(tmp_path / "pack.sqlite", GUIDES) as searcher:
        found = searcher.search(parse("amber"), filters=Filters(**filters), languages=languages)
    assert sorted(hit.path for hit in found.hits) == expected
    assert found.total == len(expected)
    for hit in found.hits:
        group = {each.url for each in GUIDES[:3]} if hit.path.endswith("guide") else {hit.url}
        assert {hit.url, *hit.copy_urls} == group
        assert hit.copies == len(group) - 1


def test_hits_by_date_are_in_order_of_the_pages_that_are_shown_of_their_groups(tmp_path: Path) -> None:
    dated = [
        replace(each, modified=date)
        for each, date in zip(GUIDES, ("2026-01-03", "2026-01-01", "", "2026-01-02"), strict=True)
    ]
    with searching(tmp_path / "pack.sqlite", dated) as searcher:
        found = searcher.search(parse("amber"), sort="date")
        german = searcher.search(parse("amber"), sort="date", filters=Filters(lang="de"))
        visitors = searcher.search(parse("amber"), sort="date", languages=("de",))
    assert [hit.modified for hit in found.hits] == ["2026-01-03", "2026-01-02"]
    assert [hit.modified for hit in german.hits] == ["2026-01-02", "2026-01-01"]
    assert visitors.hits == german.hits


def test_facets_count_a_group_once_for_each_value_of_its_pages(tmp_path: Path) -> None:
    with searching(tmp_path / "pack.sqlite", GUIDES) as searcher:
        facets = {each.name: each.counts for each in searcher.search(parse("amber")).facets}
        german = {each.name: each.counts for each in searcher.search(parse("amber"), filters=Filters(lang="de")).facets}
    assert facets["lang"] == (("de", 2), ("en", 1), ("fr", 1))
    assert facets["section"] == (("de", 2), ("fr", 1))
    assert german["lang"] == facets["lang"]
    assert german["type"] == (("text/html", 1), ("text/plain", 1))


def test_titles_of_hits_are_without_the_name_of_the_site_in_any_of_many_languages(tmp_path: Path) -> None:
    languages = ("bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "ga", "hr", "hu", "it")
    pages = [
        page(f"/{lang}-{at}", f"About {lang} {at} | The handbook of the whole site in {lang}", f"amber {at}", lang=lang)
        for lang in languages
        for at in range(5)
    ]
    with searching(tmp_path / "pack.sqlite", pages) as searcher:
        found = searcher.search(parse("amber"), limit=100)
    assert {hit.title for hit in found.hits} == {f"About {lang} {at}" for lang in languages for at in range(5)}


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
    body = f"Page 1{HEADING}amber{OTHER}Page 2{HEADING}juniper"
    assert best_pdf_page("page=2\tPage 2", body, matcher) == Subsection(fragment="page=2", heading="Page 2")
    assert best_pdf_page("linux\tPage 2", body, matcher) is None
    assert best_pdf_page("", f"Page 1{HEADING}amber", matcher) is None


def test_of_headings_with_as_many_words_the_one_with_rarer_words_is_opened(tmp_path: Path) -> None:
    names = ["Strings", "String formatting", "Format of strings", "Format specification of numbers", "More formats"]
    headings = [(f"h{at}", name) for at, name in enumerate(names)]
    (hit,) = hits(tmp_path, [with_headings("/s", "Chapter", *headings)], "string format specification")
    assert hit.opens_at == Subsection(fragment="h3", heading="Format specification of numbers")
