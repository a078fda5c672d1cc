"""The passage of a page that is shown with a hit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.search import snippet as module
from app.search.matcher import Matcher
from app.search.query import Phrase, fold, parse, words
from app.search.snippet import WIDTH, Snippet, _Passage, best_snippet, matching_lines

pytestmark = pytest.mark.unit

FILLER = "Nothing of note is said in this sentence, nor in the next. "
WORDS = st.sampled_from(["find", "Fínd", "me", "finder", "it", "<b>", "a&b", "é", "x" * 300, ". ", "\n", "und", "–"])
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
    assert inner in " ".join(text.split()) or len(inner) >= WIDTH - 1
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
    assert snippet.text.startswith("…\u00a0Nothing of note")
    assert snippet.text.endswith("\u00a0…")


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


def test_a_snippet_without_a_match_is_the_beginning_of_the_page() -> None:
    snippet = cut(FILLER * 9, "absent ")
    assert snippet.text.startswith("Nothing of note")
    assert snippet.marks == ()
    assert cut("", "absent ", description="What it is about").text == "What it is about"
    assert cut("", "absent ").text == ""


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
    folded = fold(text)
    found = [(*match.span(), match.lastindex) for match in matcher.pattern.finditer(folded)]
    assert list(matcher.matches(folded)) == found


def passages_of_stretch(text: str, phrases: tuple[Phrase, ...], width: int) -> Iterator[_Passage]:
    """Yield every passage by the definition: each match with the earlier matches that it needs."""
    found = [(*match.span(), match.lastindex or 0) for match in Matcher(phrases).pattern.finditer(fold(text))]
    everywhere = Counter(phrase for _, _, phrase in found)
    for last, (_, end, _) in enumerate(found):
        first = next(at for at in range(last + 1) if end - found[at][0] <= width or at == last)
        while found[first][2] in {phrase for _, _, phrase in found[first + 1 : last + 1]}:
            first += 1
        held = {phrase for _, _, phrase in found[first : last + 1]}
        rarity = sum(1 / everywhere[phrase] for phrase in everywhere if phrase in held)
        yield _Passage(found[first][0], end, (len(held), rarity, found[first][0] - end))


def passages_of_text(text: str, phrases: tuple[Phrase, ...], width: int) -> Iterator[_Passage]:
    for offset in range(0, len(text), STRETCH):
        found = list(passages_of_stretch(text[offset : offset + STRETCH + width], phrases, width))
        yield from (_Passage(each.start + offset, each.end + offset, each.score) for each in found)
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
    with patch.multiple(module, _STRETCH=STRETCH, _PIECE=piece, WIDTH=width):
        snippet = best_snippet(texts, Matcher(phrases))
        if passages:
            passage, text = max(passages, key=lambda pair: pair[0].score)
            assert snippet.text == module._cut(text, passage)
        else:
            assert not snippet.marks


@given(TEXTS, st.sampled_from(["fin", "find me ", '"find me" it und', '"find me it" me ', "it "]))
@example("find\nme\nit", '"find me it" me ')
def test_a_line_is_kept_if_it_matches_by_itself(text: str, typed: str) -> None:
    phrases = parse(typed).phrases
    kept = tuple(line for line in text.splitlines() if Matcher(phrases).pattern.search(fold(line)))
    assert matching_lines(text, Matcher(phrases)) == kept


@given(st.text(st.one_of(st.characters(), st.sampled_from("aÉé Σσς\u0300İß“—\u01a0\ud800"))))
def test_a_text_is_folded_character_by_character(text: str) -> None:
    assert fold(text) == "".join(map(fold, text))


def test_only_matching_lines_are_kept() -> None:
    matcher = Matcher(parse('"one two" three ').phrases)
    assert matching_lines("One two\none\ntwo\nThree, four\r\nfive", matcher) == ("One two", "Three, four")
    assert matching_lines("one\ntwo", matcher) == ()
