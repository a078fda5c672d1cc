"""The language of a text that declares none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.text.languages import detect_language

pytestmark = pytest.mark.unit

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
}


@pytest.mark.parametrize("lang", SENTENCES)
def test_a_sentence_shows_its_language(lang: str) -> None:
    assert detect_language(SENTENCES[lang]) == lang
    assert detect_language(SENTENCES[lang].upper()) == lang


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Index",
        "Documentation 3.11",
        "4711 0815 " * 50,
        "x = [f(y) for y in z]; return {k: v[0] << 2} if a else b()",
    ],
)
def test_a_short_text_numbers_and_code_have_no_language(text: str) -> None:
    assert detect_language(text) == ""


@given(st.text(max_size=300))
def test_any_text_has_a_language_subtag_or_none(text: str) -> None:
    lang = detect_language(text)
    assert lang == "" or (lang.isascii() and lang.isalpha() and 2 <= len(lang) <= 3)
