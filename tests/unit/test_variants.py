"""Other forms of words, and the languages whose rules they follow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.languages import ALGORITHMS, algorithm_of, stop_words_in
from app.text.variants import Variants, forms_of, symbols_in

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("algorithm", "text", "forms"),
    [
        ("english", "Kernels sorted, sorting", "kernel sort"),
        ("english", "sort sorted", ""),
        ("german", "Häuser", "haus"),
        ("english", "ThreadPoolExecutor", "executor pool thread"),
        ("", "管理の全体", "の全 全体 理の 管理"),
        ("", "Debian管理", "debian 管理"),
        ("", "as they are", ""),
        ("", "C++, C# or ASP.NET on .NET", "cplusplus csharp dotnet"),
    ],
)  # fmt: skip
def test_a_text_is_indexed_with_the_forms_that_it_does_not_contain(algorithm: str, text: str, forms: str) -> None:
    found = Variants(algorithm).of(text).split()
    assert set(forms.split()) <= set(found)
    assert not set(found) & {word.casefold() for word in text.split()}


def test_a_typed_word_stands_for_its_stems_or_its_pairs_of_characters() -> None:
    assert forms_of("Kernels", ["english", "german"]) == (("kernel",),)
    assert forms_of("kernel", ["english"]) == ()
    assert forms_of("全体図", ["english"]) == (("全体", "体図"),)
    assert forms_of("全体", ["english"]) == forms_of("x" * 99, ["english"]) == ()


def test_the_language_is_the_declared_one_or_else_that_of_the_stop_words() -> None:
    assert algorithm_of("de-AT", "the of and to") == "german"
    assert algorithm_of("", "This is the text of a page that has no language") == "english"
    assert algorithm_of("", "Comment ajouter une bordure à la photo et au texte") == "french"
    assert algorithm_of("ja", "全体") == algorithm_of("", "x1 y2 z3") == ""


def test_a_stop_word_of_another_language_counts_with_a_second_one() -> None:
    assert stop_words_in(["man", "page"]) == frozenset()
    assert stop_words_in(["wie", "kann", "man"]) == {"wie", "kann", "man"}


@given(st.text(max_size=80), st.sampled_from(sorted({"", *ALGORITHMS.values()})))
def test_any_text_has_forms(text: str, algorithm: str) -> None:
    Variants(algorithm).of(text)
    for word in text.split():
        forms_of(word, [algorithm] if algorithm else [])


names_with_signs = st.sampled_from(["C++", "c#", ".NET", "g++", "F#"])
other_texts = st.sampled_from(["", "C", "a.net", "example.net", "a#b", "C++11", "C+++", "..net", "#", "++", ".network"])


@given(st.lists(other_texts), names_with_signs, st.lists(other_texts), st.sampled_from(["", ",", ".", "?", ")"]))
def test_a_name_with_signs_is_found_between_other_texts(
    before: list[str], name: str, after: list[str], sign: str
) -> None:
    assert symbols_in(" ".join(before + after)) == ()
    assert symbols_in(" ".join([*before, name + sign, *after])) == symbols_in(name) != ()
