"""The piece of a page that is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.search import snippet as module
from app.search.query import Unit, parse
from app.search.snippet import WIDTH, Snippet, _Cluster, _wanted, best_snippet, lines_with
from app.search.tokens import fold, words

pytestmark = pytest.mark.unit

FILLER = "Nothing of note stands in this sentence, nor in the next. "
WORDS = st.sampled_from(["find", "Fínd", "me", "finder", "it", "<b>", "a&b", "é", "x" * 300, ". ", "\n", "und", "–"])
TEXTS = st.lists(st.one_of(WORDS, st.text(max_size=12)), max_size=120).map(" ".join)


#: Little else than what is looked for.
DENSE = st.lists(st.sampled_from(["find", "me", "it", "me me", " ", "finder", "me\u0300"]), max_size=25).map(" ".join)
STRETCH = 60


def cut(text: str, query: str, *, description: str = "") -> Snippet:
    return best_snippet((description, text), parse(query).units)


def marked(snippet: Snippet) -> list[str]:
    return [text for text, is_marked in snippet.pieces if is_marked]


@given(TEXTS, st.sampled_from(["find ", "fin", "find me ", '"find me" it ']))
def test_a_snippet_is_a_piece_of_the_page_with_its_matches_marked(text: str, typed: str) -> None:
    text = text.encode(errors="replace").decode()
    query = parse(typed)
    snippet = best_snippet(("", text), query.units)
    assert "".join(piece for piece, _ in snippet.pieces) == snippet.text
    assert all(piece for piece, _ in snippet.pieces)
    inner = snippet.text.removeprefix("…\u00a0").removesuffix("\u00a0…")
    assert inner in " ".join(text.split()) or len(inner) >= WIDTH - 1
    assert len(inner) <= WIDTH
    wanted = set(words(" ".join(query.words)))
    for piece in marked(snippet):
        assert all(word in wanted or word.startswith("fin") for word in words(piece))
    found = set(words(snippet.text))
    if len(query.words) == 1 and query.words[0] in found:
        assert snippet.marks


def test_the_closest_meeting_of_all_the_words_is_shown() -> None:
    text = f"apple {FILLER * 9} pear {FILLER * 9} An apple and a pear met. {FILLER * 9} apple pear apple"
    assert marked(cut(text, "apple pear ")) == ["apple pear apple"]
    assert "An apple and a pear met." in cut(text.removesuffix(" apple pear apple"), "apple pear ").text


def test_a_snippet_begins_with_a_sentence_where_one_is_near() -> None:
    snippet = cut(f"{FILLER * 9}Then it was found here. {FILLER * 9}", "found ")
    assert snippet.text.startswith("…\u00a0Nothing of note")
    assert snippet.text.endswith("\u00a0…")


def test_the_rarer_word_is_shown_where_the_two_are_far_apart() -> None:
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


def test_without_a_match_the_beginning_is_shown() -> None:
    snippet = cut(FILLER * 9, "absent ")
    assert snippet.text.startswith("Nothing of note")
    assert snippet.marks == ()
    assert cut("", "absent ", description="What it is about").text == "What it is about"
    assert cut("", "absent ").text == ""


def test_a_description_with_all_the_words_is_shown_before_the_body() -> None:
    snippet = cut(f"{FILLER}A pear, then an apple.", "apple pear ", description="About apple pear")
    assert snippet.text == "About apple pear"


def test_a_match_deep_in_a_long_page_is_found() -> None:
    assert marked(cut(f"{FILLER * 10_000} needle", "needle ")) == ["needle"]


def test_one_word_without_end_is_cut() -> None:
    snippet = best_snippet(("x" * 10_000,), (Unit(("xx",), prefix=True),))
    assert len(snippet.text) <= WIDTH + 2


@given(TEXTS, st.sampled_from(["fin", "find me ", '"find me" it und', "me finder. find"]))
def test_what_is_looked_for_where_its_first_word_stands_is_what_the_pattern_finds(text: str, typed: str) -> None:
    wanted = _wanted(parse(typed).units)
    folded = fold(text)
    assert [found[:2] for found in wanted.matches(folded)] == [m.span() for m in wanted.pattern.finditer(folded)]


def clusters_of_stretch(text: str, units: tuple[Unit, ...], width: int) -> Iterator[_Cluster]:
    """Yield what the module's clusters are, spelled out: each match with those before it that it needs."""
    found = [(*match.span(), match.lastindex or 0) for match in _wanted(units).pattern.finditer(fold(text))]
    everywhere = Counter(unit for _, _, unit in found)
    for last, (_, end, _) in enumerate(found):
        first = next(at for at in range(last + 1) if end - found[at][0] <= width or at == last)
        while found[first][2] in {unit for _, _, unit in found[first + 1 : last + 1]}:
            first += 1
        held = {unit for _, _, unit in found[first : last + 1]}
        rarity = sum(1 / everywhere[unit] for unit in everywhere if unit in held)
        yield _Cluster(found[first][0], end, (len(held), rarity, found[first][0] - end))


def clusters_of_text(text: str, units: tuple[Unit, ...], width: int) -> Iterator[_Cluster]:
    for offset in range(0, len(text), STRETCH):
        found = list(clusters_of_stretch(text[offset : offset + STRETCH + width], units, width))
        yield from (_Cluster(each.start + offset, each.end + offset, each.merit) for each in found)
        if any(each.merit[0] == len(units) for each in found):
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
def test_a_text_read_piece_by_piece_as_far_as_need_be_shows_what_all_of_it_would(
    texts: tuple[str, str], typed: str, width: int, piece: int
) -> None:
    units = parse(typed).units
    every = [(each, text) for text in texts for each in clusters_of_text(text, units, width)]
    with patch.multiple(module, _STRETCH=STRETCH, _PIECE=piece):
        snippet = best_snippet(texts, units, width=width)
    if every:
        cluster, text = max(every, key=lambda pair: pair[0].merit)
        assert snippet.text == module._cut(text, cluster, width)
    else:
        assert not snippet.marks


@given(TEXTS, st.sampled_from(["fin", "find me ", '"find me" it und', "it "]))
def test_a_line_is_kept_where_it_has_a_match_by_itself(text: str, typed: str) -> None:
    units = parse(typed).units
    kept = tuple(line for line in text.splitlines() if _wanted(units).pattern.search(fold(line)))
    assert lines_with(text, units) == kept


@given(st.text(st.one_of(st.characters(), st.sampled_from("aÉé Σσς\u0300İß“—\u01a0\ud800"))))
def test_a_text_is_folded_as_each_of_its_characters_is(text: str) -> None:
    assert fold(text) == "".join(map(fold, text))


def test_only_lines_with_a_match_are_kept() -> None:
    units = parse('"one two" three ').units
    assert lines_with("One two\none\ntwo\nThree, four\r\nfive", units) == ("One two", "Three, four")
    assert lines_with("one\ntwo", units) == ()
