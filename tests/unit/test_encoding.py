"""Detection of the encoding of a page."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.read.encoding import decode, prescan

pytestmark = pytest.mark.unit

LATE = b"<!--" + b"x" * 1_024 + b"--><meta charset=koi8-r>"

GREEK = "Η γρήγορη καφέ αλεπού πηδάει πάνω από το τεμπέλικο σκυλί και τρέχει μακριά. " * 5
FRENCH = "Voilà un café très agréable à l'été où naît la forêt. " * 5
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю, пока он не остыл. " * 5


@pytest.mark.parametrize(
    ("body", "header", "expected"),
    [
        (codecs.BOM_UTF8 + "é".encode(), "text/html; charset=latin-1", "é"),
        (codecs.BOM_UTF16_LE + "é€".encode("utf-16le"), "", "é€"),
        (codecs.BOM_UTF16_BE + "é€".encode("utf-16be"), "text/html; charset=utf-8", "é€"),
        ("é".encode(), "text/html; charset=UTF-8", "é"),
        (b"<meta charset=utf-8>\xe9", "text/html; charset=iso-8859-1", "<meta charset=utf-8>é"),
        (b"\x93quoted\x94", 'text/html; Charset="latin1"', "“quoted”"),
        (b"<meta charset=shift_jis>" + "日本".encode("shift_jis"), "text/html", "<meta charset=shift_jis>日本"),
        (b"<meta charset=big5>" + "日本".encode("big5"), "text/html; charset=nonsense", "<meta charset=big5>日本"),
        ("<?xml version='1.0' encoding='koi8-r'?>да".encode("koi8-r"), "", "<?xml version='1.0' encoding='koi8-r'?>да"),
        (LATE + "да".encode("koi8-r"), "", LATE.decode() + "да"),
        (b"<meta charset=utf-16>" + "é".encode(), "", "<meta charset=utf-16>é"),
        ("日本".encode(), "text/html", "日本"),
        (b"caf\xe9", "text/html; charset=utf-8", "caf�"),
        (b"caf\xe9", "", "café"),
        (b"\x81\xff\x00", "text/html; charset=windows-1252", None),
        (b"", "", ""),
    ],
)  # fmt: skip
def test_encodings_are_detected_in_the_order_of_the_standard(body: bytes, header: str, expected: str | None) -> None:
    text = decode(body, header)
    if expected is not None:
        assert text == expected


@pytest.mark.parametrize(
    ("text", "name"), [(GREEK, "iso8859-7"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r"), (FRENCH, "cp1252")]
)
def test_an_undeclared_encoding_is_guessed(text: str, name: str) -> None:
    assert decode(text.encode(name)) == text


def test_an_invalid_byte_does_not_make_utf_8_another_encoding() -> None:
    assert decode(GREEK.encode() + b"\xff") == GREEK + "�"
    assert decode(GREEK.strip().encode()[:-1] + b"\xce") == GREEK.strip()[:-1] + "�"


@pytest.mark.parametrize(
    ("head", "label"),
    [
        (b"<html><head><META Charset = 'koi8-r' >", "koi8-r"),
        (b"<meta http-equiv=Content-Type content='text/html; charset=koi8-r'>", "koi8-r"),
        (b"<meta content='text/html; charset=koi8-r' http-equiv='content-type'/>", "koi8-r"),
        (b"<meta name=x content='text/html; charset=koi8-r'>", None),
        (b"<!-- <meta charset=koi8-r> --><meta charset=big5>", "big5"),
        (b"<!--> <meta charset=koi8-r>", "koi8-r"),
        (b"<a title='<meta charset=koi8-r>'><meta charset=big5>", "big5"),
        (b"<?php <meta charset=koi8-r ?><meta charset=big5>", "big5"),
        (b"</meta charset=koi8-r><metadata charset=koi8-r><meta charset=big5>", "big5"),
        (b"<meta charset=nonsense><meta charset=big5>", "big5"),
        (b"<meta charset=koi8-r charset=big5>", "koi8-r"),
        (b"<meta charset='koi8-r", None),
        (b"a < b <3 <meta/charset=koi8-r>", "koi8-r"),
        (b"<meta", None),
    ],
)
def test_the_prescan_finds_a_meta_as_browsers_do(head: bytes, label: str | None) -> None:
    assert prescan(head) == label


@given(st.binary(max_size=200), st.text(max_size=40))
def test_decoding_never_raises(body: bytes, header: str) -> None:
    decode(body, header)
    decode(b"<meta " + body, "text/html; charset=" + header)


@given(st.text())
def test_utf_8_is_decoded_unchanged(text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    expected = encoded.decode("utf-8", "replace")
    assert decode(encoded, "text/html; charset=utf-8") == expected.removeprefix("\ufeff")
