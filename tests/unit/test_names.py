"""Names that headings and terms define, and paths without their language."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pack.alternates import without_language
from app.text.names import is_named_after, is_plain_word, names_in_term, shown_term

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "fragment", "names"),
    [
        ("class collections.OrderedDict([items])", "collections.OrderedDict", "collections.OrderedDict"),
        ("popitem(last=True)", "collections.OrderedDict.popitem", "collections.OrderedDict.popitem"),
        ("PyObject *PyList_New(Py_ssize_t len)", "c.PyList_New", "PyList_New"),
        ("PyObject *PyList_New(Py_ssize_t len)", "", "PyList_New"),
        ("shared_buffers (integer)", "GUC-SHARED-BUFFERS", "shared_buffers"),
        ("log_parser_stats (boolean) log_planner_stats (boolean)", "x", "log_parser_stats log_planner_stats"),
        ("ltrim(X)ltrim(X,Y)", "ltrim", "ltrim"),
        ("-f, --force", "", "-f --force"),
        ("-C[<n>], --context=<n>", "", "-C --context"),
        ("Alias Directive ¶", "alias", "Alias"),
        ("Directive <IfModule>", "ifmodule", "IfModule"),
        ("Interface BidiMap<K,V>", "", "BidiMap"),
        ("django.utils.timezone", "s-module-django.utils.timezone", "django.utils.timezone"),
        ("Server Signaling Functions", "FUNCTIONS-SIGNAL", ""),
        ("Options you shouldn't use", "", ""),
        ("", "", ""),
    ],
)
def test_a_heading_or_term_defines_names(text: str, fragment: str, names: str) -> None:
    assert " ".join(names_in_term(text, fragment)) == names


@given(st.text(max_size=120), st.text(max_size=40))
def test_any_text_has_names_or_none(text: str, fragment: str) -> None:
    assert all(names_in_term(text, fragment))
    assert shown_term(text, fragment) or not text


def test_a_term_is_shown_by_its_name() -> None:
    assert shown_term("print(*objects, sep=' ')", "print") == "print()"
    assert shown_term("shared_buffers (integer)", "GUC-SHARED-BUFFERS") == "shared_buffers"
    assert shown_term("two words") == "two words"


def test_a_word_without_a_sign_of_an_identifier_is_plain() -> None:
    assert is_plain_word("Hooks", "Hooks", "_hooks")
    assert is_plain_word("calls", "Function calls")
    assert not is_plain_word("Alias", "Alias Directive")
    assert not is_plain_word("print", "print()")
    assert not is_plain_word("abs", "abs", "abs()")
    assert not any(is_plain_word(name, name) for name in ("OrderedDict", "work_mem", "os.path", "--force", "utf8"))


def test_a_link_names_a_fragment_by_its_end() -> None:
    assert is_named_after("pragma_cache_size", "cache_size")
    assert is_named_after("coalesce", "coalesce(X,Y,...)")
    assert not is_named_after("options", "here")
    assert not is_named_after("core-settings", "Core settings")


@pytest.mark.parametrize(
    ("path", "lang", "expected"),
    [
        ("/fr/mod/core.html", "fr", "/mod/core.html"),
        ("/pt-br/a.html", "pt-BR", "/a.html"),
        ("/zh_CN/a.html", "zh-CN", "/a.html"),
        ("/mod/core.html.fr.utf8", "fr", "/mod/core.html"),
        ("/index.de.html", "de-AT", "/index.html"),
        ("/da/bind.html", "en", "/da/bind.html"),
        ("/it.html", "it", "/it.html"),
        ("/a.html", "", "/a.html"),
    ],
)
def test_a_path_is_compared_without_its_language(path: str, lang: str, expected: str) -> None:
    assert without_language(path, lang) == expected
