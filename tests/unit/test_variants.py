"""Other forms of words, languages of texts, and titles without the name of their site."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.text.languages import ALGORITHMS, algorithm_of, detect_language, stop_words_in
from app.text.titles import site_names, without_site_name
from app.text.variants import Variants, forms_of, symbols_in
from tests.packs import page, write_pack

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


def test_an_index_of_stems_has_no_stop_words_of_a_text() -> None:
    english = Variants("english")
    assert english.stems_of_all(english.words_in("The kernels were compiled.")) == ["kernel", "compil"]


def test_a_typed_word_stands_for_its_stems_or_its_pairs_of_characters() -> None:
    assert forms_of("Kernels", ["english", "german"]) == (("kernel",),)
    assert forms_of("kernel", ["english"]) == ()
    assert forms_of("全体図", ["english"]) == (("全体", "体図"),)
    assert forms_of("全体", ["english"]) == forms_of("x" * 99, ["english"]) == ()


#: Texts of pages, each with queries that find and mark it alone.
WRITTEN = {
    "किताब": ["किताब", '"किताब"'],
    "कुतुब": ["कुतुब"],
    "மொழி": ["மொழி"],
    "كِتَابٌ": ["كتاب ", "كِتاب ", "كتـــاب ", '"كتاب"'],
    "בְּרֵאשִׁית": ["בראשית ", '"בראשית"'],
    "ประเทศไทย": ["ประเทศไทย", '"ประเทศไทย"'],
    "ＮＨＫ": ["nhk ", '"NHK"', "ｎｈｋ"],
    "٢٠٢٦": ["2026 ", "۲۰۲۶ "],
    "データ": ["ﾃﾞｰﾀ", "データ"],
    "Ilık": ["ılık ", "ILIK ", "ilik "],
    "İzmir": ["izmir ", "IZMIR ", "ızmir "],
    "Đà Nẵng": ["da nang ", '"đà nẵng"', "Đa\u0300 Na\u0306\u0303ng "],
    "Łódź": ["lodz ", '"łodz"'],
    "œuvre": ["oeuvre ", '"Oeuvre"'],
    "Straße": ["strasse ", '"STRASSE"', "STRAẞE ", "straß"],
    "ﬁnal": ["final ", '"ﬁnal"', '"Final"'],
    "Αθήνα": ["ΑΘΗΝΑ ", "αθηνα "],
    "ещё": ["еще ", "ЕЩЁ "],
    "мой": ["мой ", "мои\u0306 "],
    "m²": ["m2 "],
    "I ❤️ NY": ['"I ❤️ NY"', '"i ny"'],
}


def test_a_word_is_found_and_marked_however_it_is_written(tmp_path: Path) -> None:
    pages = [page(f"/{at}", "", f"— {word}, “”.") for at, word in enumerate([*WRITTEN, "мои"])]
    with closing(PackSearcher(write_pack(tmp_path / "pack.sqlite", pages), time_limit=10)) as searcher:
        for at, (word, queries) in enumerate(WRITTEN.items()):
            for query in queries:
                found = [(hit.path, *hit.snippet.pieces) for hit in searcher.search(parse(query)).hits]
                assert found == [(f"/{at}", ("— ", False), (word, True), (", “”.", False))], query


def test_a_page_is_stemmed_by_the_algorithm_of_its_language() -> None:
    assert algorithm_of("de-AT") == "german"
    assert algorithm_of("ja") == algorithm_of("") == ""


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


SENTENCES = {
    "en": "The command copies all files of a folder to another place and keeps their permissions.",
    "de": "Der Befehl kopiert alle Dateien eines Ordners an einen anderen Ort und behält deren Rechte.",
    "fr": "La commande copie tous les fichiers d'un dossier vers un autre endroit et garde leurs droits.",
    "es": "La orden copia todos los archivos de una carpeta a otro lugar y conserva sus permisos.",
    "it": "Il comando copia tutti i file di una cartella in un altro posto e ne conserva i permessi.",
    "pl": "Polecenie kopiuje wszystkie pliki z folderu w inne miejsce i zachowuje ich uprawnienia.",
    "ru": "Команда копирует все файлы из папки в другое место и сохраняет их права доступа.",
    "el": "Η εντολή αντιγράφει όλα τα αρχεία ενός φακέλου σε άλλο μέρος και διατηρεί τα δικαιώματά τους.",
    "ja": "このコマンドはフォルダのすべてのファイルを別の場所にコピーし、" * 2,
    "zh": "该命令把文件夹中的所有文件复制到另一个位置，并保留它们的权限。" * 2,
    # Their stop words are those of English or Dutch in part, or not known at all.
    "da": "Kommandoen kopierer alle filer i en mappe til et andet sted, og den er god at have for at flytte dem op i "
    "en anden mappe. Det er det samme som at flytte dem, men de er der i to mapper, og en af dem er en kopi.",
    "ca": "L'ordre copia tots els fitxers d'una carpeta a un altre lloc i en conserva els permisos. No és el mateix "
    "que moure la carpeta, que ja no és al lloc on era; si la còpia és al mateix lloc, no es pot fer.",
    "ga": "Déanann an t-ordú cóip de na comhaid as an bhfillteán a chur in áit eile agus is é sin an rud is fearr a "
    "dhéanamh. Is an rud céanna é a bheith ag bogadh an fhillteáin, ach níl an fillteán san áit a raibh sé.",
}


@pytest.mark.parametrize("lang", SENTENCES)
def test_a_sentence_shows_its_language(lang: str) -> None:
    assert detect_language(SENTENCES[lang]) == lang
    assert detect_language(SENTENCES[lang].upper()) == lang


@pytest.mark.parametrize(
    ("text", "lang"),
    [
        ("This is about the text of a page", "en"),
        ("La couleur des bords de la page", "fr"),
        ("de la", ""),  # French and Spanish.
        ("The list of commands", "en"),
        ("The command", ""),
        ("", ""),
        ("Documentation 3.11", ""),
        ("4711 0815 " * 50, ""),
        ("x = [f(y) for y in z]; return {k: v[0] << 2} if a else b()", ""),
    ],
)
def test_a_short_text_has_the_language_of_two_stop_words_and_numbers_and_code_have_none(text: str, lang: str) -> None:
    assert detect_language(text) == lang


def test_stop_words_show_a_technical_text_of_which_the_model_is_unsure() -> None:
    name = "boost::mpi::all_to_all(const communicator & comm, const std::vector< T > & in_values) "
    text = f"Function {name * 2} Send data from every process to every other process with a call of the function."
    assert detect_language(text) == "en"
    assert detect_language(name * 2) == ""


@given(st.text(max_size=300))
def test_any_text_has_a_language_subtag_or_none(text: str) -> None:
    lang = detect_language(text)
    assert lang == "" or (lang.isascii() and lang.isalpha() and 2 <= len(lang) <= 3)


@pytest.mark.parametrize(
    ("ends", "name"),
    [
        ("{} | Site", "Site"),
        ("Docs · {} | Site", "Site"),
        ("Docs - {}", "Docs"),
        ("Docs: {}", "Docs"),
        ("{} (Docs 4.2 API)", "Docs 4.2 API"),
        ("{}", ""),
    ],
)
def test_the_name_of_a_site_is_the_part_of_most_titles_and_of_two_the_last(ends: str, name: str) -> None:
    titles = [(ends.format(f"Page {number}"), "en") for number in range(6)]
    assert site_names(lambda: titles) == site_names(lambda: reversed(titles)) == name
    assert site_names(lambda: titles[:4]) == ""


@given(
    st.lists(st.sampled_from(["Page", "Page | Site", "Docs | Page | Site", "Site: A", "A | B", "B | A"]), max_size=30)
)
def test_the_name_of_a_site_is_an_end_of_over_half_of_its_titles_whatever_their_order(titles: list[str]) -> None:
    ends: Counter[str] = Counter()
    for title in titles:
        parts = re.split(r" \| |: ", title)
        ends.update({parts[0], parts[-1]} if len(parts) > 1 else ())
    shared = {part for part, number in ends.items() if 2 * number > len(titles) >= 5}
    most = {part for part in shared if ends[part] == max(ends[each] for each in shared)}
    found = site_names(lambda: [(title, "") for title in titles])
    assert found in most if shared else found == ""


def test_the_name_is_left_out_at_either_end() -> None:
    assert without_site_name("Docs · Page | Site", "Site") == "Docs · Page"
    assert without_site_name("Site - Page", "Site") == "Page"
    assert without_site_name("Site: Page", "Other\nSite") == "Page"
    assert without_site_name("Page (Site 2)", "Site 2") == "Page"
    assert without_site_name("Site", "Site") == "Site"


def test_a_site_has_a_name_in_each_language() -> None:
    titles = [(f"Page {number} - Manual", "en") for number in range(9)]
    titles += [(f"Page {number} - Manuel", "fr-FR") for number in range(6)]
    assert site_names(lambda: titles) == "Manual\nManuel"
    assert without_site_name("Page of the Site", "Site") == "Page of the Site"
