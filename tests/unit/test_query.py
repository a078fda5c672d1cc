"""From typed text to FTS5 expressions."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import InvalidQuery
from app.pack.database import SCHEMA
from app.search.query import MAX_CHARACTERS, MAX_WORDS, Phrase, parse
from app.text.words import fold, indexed, words
from tests.packs import TOKENIZER

pytestmark = pytest.mark.unit

#: Typed text: FTS5's own syntax, quotes, minus signs, words, any character.
TYPED = st.text(
    st.one_of(st.sampled_from('ab -"“”*+^:(){}_.,AND OR NOT NEAR\0\u0301é東京のカ'), st.characters()),
    max_size=MAX_CHARACTERS,
)


#: Before a phrase in quotes, or excluded: no other form of a page's words matches it.
AS_WRITTEN = "- {name_forms body_forms} : "


def _fts5() -> sqlite3.Connection:
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.executescript(
        f"""CREATE VIRTUAL TABLE text USING fts5 (title, headings, name_forms, body_forms, tokenize = "{TOKENIZER}");
        CREATE VIRTUAL TABLE vocabulary USING fts5vocab (text, 'instance');"""
    )
    return database


DATABASE = _fts5()


def tokens(text: str) -> tuple[str, ...]:
    """Return the words that FTS5 itself splits."""
    DATABASE.execute("DELETE FROM text")
    DATABASE.execute("INSERT INTO text (title) VALUES (?)", (indexed(text),))
    return tuple(row[0] for row in DATABASE.execute("SELECT term FROM vocabulary ORDER BY offset"))


def expressions(text: str) -> list[str]:
    query = parse(text).with_forms(["english", "greek"])
    either = (query.any_of(phrases) for phrases in (query.relaxed_terms, query.phrases_alone))
    return [each for each in (query.match, query.phrase_match, Phrase(query.typed).match, *either) if each]


@given(TYPED)
@example('"')
@example("a -a")
@example("NEAR(a b)")
@example("title:a")
@example("a\0b")
@example("\ud800a")
@example("\u0301a \U0001e900")
@example("a 東京\u0301")
@example("東\u0301京\u0301a")
def test_any_text_is_refused_or_becomes_a_valid_fts5_expression(text: str) -> None:
    try:
        parsed = expressions(text)
    except InvalidQuery:
        return
    for expression in parsed:
        assert DATABASE.execute("SELECT count(*) FROM text WHERE text MATCH ?", (expression,)).fetchone() is not None
        quoted = re.findall(r'"([^"]*)"', expression)
        assert quoted
        assert all(len(tokens(each)) == 1 for each in quoted)
        outside = re.sub(r'"[^"]*"', "", expression.replace(AS_WRITTEN, ""))
        assert set(re.findall(r"[^\s()+*]+", outside)) <= {"AND", "OR", "NOT"}


@given(st.text())
@example("Ælfric's Œuvre, ΣΊΣΥΦΟΣ и Й\u0301 e\u0301te\u0301 \U0001e900")
def test_words_are_those_that_fts5_indexes(text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert words(text) == tokens(text)
    assert len(fold(text)) == len(text)


def test_the_tokenizer_is_that_of_the_schema() -> None:
    assert f'tokenize = "{TOKENIZER}"' in SCHEMA


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("open files ", '"open" AND "files"'),
        ('"open files"', f'{AS_WRITTEN}"open" + "files"'),
        ("“open files” now ", f'{AS_WRITTEN}"open" + "files" AND "now"'),
        ("os.path ", '"os" + "path"'),
        ("it's C++ ", '"it" + "s" AND "cplusplus"'),
        ("l'image d\u2019un ", '"image" AND "un"'),
        ('"l\'image" qu ', f'{AS_WRITTEN}"l" + "image" AND "qu"'),
        ("d' o'reilly ", '"o" + "reilly"'),
        ("open -files ", f'("open") NOT ({AS_WRITTEN}"files")'),
        ('a -"b c" -dd -e', f'("a" AND "e") NOT ({AS_WRITTEN}"b" + "c" OR {AS_WRITTEN}"dd")'),
        ("--verbose ", '"verbose"'),
        ("read-only ", '"read" + "only"'),
        ("Schiff\xadfahrt ", '"Schifffahrt"'),
        ("a AND b OR NOT NEAR ", '"b" AND "NOT" AND "NEAR"'),
        ("how do I open files? ", '"open" AND "files"'),
        ("what's new in 3.9 ", '"new" AND "3" + "9"'),
        ("wie melde ich einen Fehler ", '"melde" AND "Fehler"'),
        ("man page format ", '"man" AND "page" AND "format"'),
        ("for loop ", '"for" AND "loop"'),
        ('"how to" open files ', f'{AS_WRITTEN}"how" + "to" AND "open" AND "files"'),
        ("title:x* ", '"title" + "x"'),
    ],
)
def test_a_query_is_parsed_into_words_phrases_and_exclusions(text: str, match: str) -> None:
    assert parse(text).match == match


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("open fil", "fil"),
        ("os.pat", "pat"),
        ('"open fil', "fil"),
        ("open fil ", None),
        ('"open fil"', None),
        ("open fil?", None),
        ("open fil -x", None),
        ("fil -fil", None),
        ("c", None),
        ("C++", None),
        ("山", "山"),
    ],
)
def test_the_last_word_may_be_a_prefix(text: str, prefix: str | None) -> None:
    assert parse(text).prefix == prefix


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("?!", "no letter or digit to search for in “?!”"),
        ("-aa -bb", "only excludes"),
        ("x" * (MAX_CHARACTERS + 1), "256 characters"),
        ("a " * (MAX_WORDS + 1), "33 words"),
    ],
)
def test_an_invalid_query_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidQuery, match=re.escape(reason)):
        parse(text)


def test_the_longest_query_is_accepted() -> None:
    assert len(parse("a " * MAX_WORDS).words) == MAX_WORDS
    assert parse("x" * MAX_CHARACTERS).prefix
