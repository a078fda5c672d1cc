"""Words of scripts without spaces are found, marked and shown inside of longer words."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.parse.extract.contract import collapsed
from app.search.matcher import Matcher, UnspacedParts
from app.search.pack_searcher import PackSearcher
from app.search.passage_scorer import WIDTH
from app.search.query import parse
from app.search.snippet import best_snippet
from app.search.subsections import choose
from app.text.words import fold
from tests.packs import page, searching

pytestmark = pytest.mark.unit

#: Sentences without a space, as Japanese pages have them.
FILLER = "この章では特に何も述べません。" * 40


def matcher(query: str) -> Matcher:
    return Matcher(parse(query).with_forms([]).phrases)


def marked(text: str, query: str) -> list[str]:
    snippet = best_snippet(("", text), matcher(query))
    assert len(snippet.text) <= WIDTH + 4
    return [piece for piece, is_marked in snippet.pieces if is_marked]


def paths(searcher: PackSearcher, q: str) -> list[str]:
    return [hit.path for hit in searcher.search(parse(q)).hits]


def test_a_question_finds_the_pages_that_have_most_of_its_words_whatever_their_grammar(tmp_path: Path) -> None:
    bodies = {
        "/keys": f"{FILLER}安全なパスワードを作成するには、長い文を選びます。{FILLER}",
        "/files": f"{FILLER}不要なファイルを削除できます。{FILLER}",
        "/mail": f"{FILLER}良い例は他にもあります。{FILLER}",
    }
    pages = (page(path, f"手引き{path}", body, lang="ja") for path, body in bodies.items())
    with searching(tmp_path / "1.sqlite", pages) as searcher:
        assert paths(searcher, "良いパスワードの作り方") == ["/keys", "/mail"]
        assert paths(searcher, "ファイルの削除") == paths(searcher, "削除ファイル") == ["/files"]
        assert paths(searcher, "パスワードとファイル") == ["/keys", "/files"]
        assert paths(searcher, "暗号化") == []
        [hit] = searcher.search(parse("ファイルの削除")).hits
        assert [text for text, is_marked in hit.snippet.pieces if is_marked] == ["ファイル", "削除"]
        assert hit.snippet.text.startswith("この章では特に何も述べません。")


@pytest.mark.parametrize(
    "word", ["佐々木", "二〇二六年", "𠮷野家", "ﾃﾞｰﾀ", "ウタㇻ達", "C言語", "Tシャツ", "第1章", "3月"]
)
def test_a_word_with_a_mark_a_rare_character_small_kana_a_letter_or_a_digit_is_found_and_marked(
    tmp_path: Path, word: str
) -> None:
    stored = collapsed(word)
    pages = [
        page("/word", "", f"本日は{stored}の話です。", lang="ja"),
        page("/other", "", "様々な人々の〇。別の話です。", lang="ja"),
    ]
    with searching(tmp_path / "1.sqlite", pages) as searcher:
        found = searcher.search(parse(word))
    assert [(hit.path, found.relaxed) for hit in found.hits] == [("/word", False)]
    assert [text for text, is_marked in found.hits[0].snippet.pieces if is_marked] == [stored]


def test_a_digit_between_single_characters_is_found_with_them(tmp_path: Path) -> None:
    bodies = {"/one": "これは第1章です。", "/eleven": "第11章の1です。", "/year": "2026年3月から", "/three": "3年の2月"}
    pages = (page(path, "", body, lang="ja") for path, body in bodies.items())
    with searching(tmp_path / "1.sqlite", pages) as searcher:
        assert paths(searcher, "第1章") == paths(searcher, "第1章では") == ["/one"]
        assert [paths(searcher, q) for q in ("第11章", "2026年", "3月")] == [["/eleven"], ["/year"], ["/year"]]
        [hit] = searcher.search(parse("第1章")).hits
        assert [text for text, is_marked in hit.snippet.pieces if is_marked] == ["第1章"]


def test_a_quoted_and_an_excluded_word_are_found_within_longer_ones(tmp_path: Path) -> None:
    bodies = {"/city": "東京都庁の案内所は新宿にあります。", "/train": "東京からは新幹線で二時間です。"}
    pages = (page(path, "", body, lang="ja") for path, body in bodies.items())
    with searching(tmp_path / "1.sqlite", pages) as searcher:
        assert paths(searcher, '"東京都庁の"') == paths(searcher, '"案内所"') == ["/city"]
        assert paths(searcher, "東京 -東京都庁") == paths(searcher, '東京 -"都庁の"') == ["/train"]
        assert paths(searcher, '"東京から"') == paths(searcher, "東京 -案内所") == ["/train"]
        assert paths(searcher, '"東京は"') == []


def test_a_quoted_or_excluded_word_without_pairs_is_not_each_page_with_its_letter_or_digit(tmp_path: Path) -> None:
    bodies = {"/chapter": "第1章 東京", "/other": "東京 1 C", "/language": "東京でC言語を学ぶ。"}
    pages = (page(path, "", body, lang="ja") for path, body in bodies.items())
    with searching(tmp_path / "1.sqlite", pages) as searcher:
        assert paths(searcher, '"第1章"') == ["/chapter"]
        assert set(paths(searcher, "東京 -第1章")) == {"/other", "/language"}
        assert paths(searcher, '"C言語"') == ["/language"]
        assert set(paths(searcher, "東京 -C言語")) == {"/chapter", "/other"}


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        (f"{FILLER}システム全体のアップグレード{FILLER}", "全体", ["全体"]),
        (f"{FILLER}良好なパスワード規則{FILLER}", "良いパスワードの作り方", ["パスワード"]),
        (f"{FILLER}データ{FILLER}バックアップとデータの復元{FILLER}", "データの復元", ["データ", "復元"]),
        (f"{FILLER}SSHの設定ではSSHDを使う{FILLER}", "SSHの設定", ["SSH", "設定"]),
        ("설정파일을 삭제합니다", "파일", ["파일"]),
        ("如何设置新密码", "设置密码", ["设置", "密码"]),
        ("これはそれである。", "それ", ["それ"]),
        ("ภาษาที่ใช้ในประเทศไทยคือภาษาไทย", "ประเทศ", ["ประเทศ"]),
        ("ภาษาที่ใช้ในประเทศไทย", '"ในประเทศ"', ["ในประเทศ"]),
        ("全体図と全体と図", '"全体図"', ["全体図"]),
    ],
)
def test_the_parts_of_a_query_are_marked_inside_of_words(text: str, query: str, expected: list[str]) -> None:
    assert marked(text, query) == expected


def test_a_hit_opens_at_the_heading_with_most_of_the_query() -> None:
    lines = "a\tパッケージの検索\nb\tパスワードの規則\nc\t規則"
    opens_at, _ = choose(lines, title="手引き", matcher=matcher("パスワード規則"))
    assert opens_at
    assert opens_at.fragment == "b"


@given(
    st.lists(st.sampled_from(["全体", "体図", "図の", "あい", "qt", "の"]), min_size=1, max_size=4, unique=True),
    st.text(st.sampled_from("全体図のあいqt -")),
)
def test_each_character_of_each_part_is_matched_once(parts: list[str], text: str) -> None:
    folded = fold(text)
    found = UnspacedParts({part: number for number, part in enumerate(parts, 1)}).matches(folded)
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(found))
    expected = set()
    for part in parts:
        for at in range(len(folded)):
            before, after = folded[:at][-1:], folded[at + len(part) :][:1]
            if folded.startswith(part, at) and (part != "qt" or not {before, after} & {"q", "t"}):
                expected |= {*range(at, at + len(part))}
    assert {at for start, end, _ in found for at in range(start, end)} == expected
