"""The search settings of a site: synonyms, best bets, hidden paths and weights of fields, in real packs."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.client.scatter_gather import merge
from app.cluster.protocol import PackVersion
from app.cluster.searcher.packs import OpenPacks
from app.cluster.searcher.settings_reader import SearchSettingsReader, settings_of
from app.errors import InvalidSite, StoreError
from app.search.contract import BestBet, Filters, PackHits, SearchReply, SearchRequest
from app.search.pack_searcher import PackSearcher
from app.search.promotion import Promoted, promote
from app.search.query import parse
from app.search.synonyms import Synonyms, read_rule
from app.sites.declared import read_declared
from app.sites.site import Site
from app.sites.stored import add_site, site_key, update_site
from app.storage.folder import FolderStore
from app.storage.marker import create_marker
from app.storage.store import StoredObject
from tests.packs import page, searching, write_pack
from tests.support.stores import folder_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.unit

TREES = ("oak", "ash", "elm", "fir", "yew")
DOCS = Path(__file__).parent.parent.parent / "docs"
VERSION = PackVersion(domain="site.example", sha256="1", generation=1, size_mb=1)
_FTS5 = sqlite3.connect(":memory:")
_FTS5.execute("CREATE VIRTUAL TABLE sample USING fts5 (text)")
FILLER = [page(f"/filler/{word}", f"About {word}", f"{word} and others") for word in TREES]
PAGES = [
    page("/tv", "Set up the television", "Plug the television in."),
    page("/clusters", "Clusters", "Kubernetes runs containers."),
    page("/orchestrate", "Container orchestration", "About container orchestration in general."),
    page("/split", "Apart", "A container, and later an orchestration."),
    page("/drafts/tv", "Television draft", "An unfinished television zebra page."),
    page("/amber", "Amber", "Nothing of the tree."),
    page("/long", "Trees", "amber amber amber amber amber amber amber amber"),
    *FILLER,
]
BEST_BET = {"queries": ["Opening hours"], "words": ["when open"], "url": "https://site.example/hours", "title": "Hours"}


@pytest.fixture
def searcher(tmp_path: Path) -> Iterator[PackSearcher]:
    with searching(tmp_path / "pack.sqlite", PAGES) as searcher:
        yield searcher


def apply(searcher: PackSearcher, **fields: Any) -> None:
    searcher.apply(settings_of(Site.of("site.example", fields)))


def found(searcher: PackSearcher, text: str) -> PackHits:
    return searcher.search(parse(text))


def paths(searcher: PackSearcher, text: str) -> set[str]:
    return {hit.path for hit in found(searcher, text).hits}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"synonyms": ["k8s"]}, "synonyms: 'k8s': expected two different words or phrases at least"),
        ({"synonyms": ["Tree, tree"]}, "synonyms: 'Tree, tree': expected two different words"),
        ({"synonyms": ["a1 => b1", "b1 => c1, d1", "D1 => a1"]}, "synonyms: a1 => b1 => D1 => a1 is a cycle"),
        ({"synonyms": ["a1 => a1, b1"]}, "synonyms: 'a1 => a1, b1': the same phrase is on both sides"),
        ({"synonyms": ["tree, ++"]}, "synonyms: 'tree, ++': there is no letter or digit to search for in “++”"),
        ({"synonyms": ["tree, oak -tree"]}, "'oak -tree' excludes words: remove the minus before them"),
        ({"synonyms": ["tree, "]}, "synonyms: 'tree, ': the query is empty"),
        ({"synonyms": ["tree, one two three four five six seven eight nine"]}, "has 9 words; expected at most 8"),
        ({"synonyms": [f"tree, {'long ' * 30}"]}, "at most 100 characters"),
        ({"synonyms": [f"a{n}, b{n}" for n in range(10_000)]}, "synonyms: Tuple should have at most 1000 items"),
        ({"best_bets": [BEST_BET | {"colour": "red"}]}, "best_bets.0.colour: unknown field"),
        ({"best_bets": [BEST_BET | {"url": "ftp://site.example/"}]}, "best_bets.0.url: URL 'ftp://site.example/'"),
        ({"best_bets": [BEST_BET | {"queries": ["?"]}]}, "best_bets.0.queries.0: '?': there is no letter or digit"),
        ({"best_bets": [{"url": "https://site.example/", "title": "Home"}]}, "it has neither queries nor words"),
        ({"best_bets": ["{"]}, "best_bets.0: expected JSON such as"),
        (
            {"best_bets": [BEST_BET], "blocked": ["https://site.example/hours"]},
            "best_bets: https://site.example/hours is blocked",
        ),
        ({"hidden_paths": ["drafts"]}, "hidden_paths.0: 'drafts': a pattern begins with '/'"),
        ({"field_weights": {"titel": 2}}, "field_weights: 'titel' is no field: expected title, headings, anchors"),
        ({"field_weights": {"title": 11}}, "field_weights: title: 11 is not from 0.1 to 10"),
        ({"field_weights": {"body": "much"}}, "field_weights.body: Input should be a valid number"),
    ],
)
def test_an_invalid_search_setting_is_refused_by_field_and_reason(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSite, match=rf"^site\.example: .*{re.escape(text)}"):
        Site.of("site.example", fields)


def test_a_best_bet_outside_of_the_scope_is_refused() -> None:
    fields = {"best_bets": [BEST_BET | {"url": "https://www.site.example/hours"}]}
    assert Site.of("site.example", {**fields, "scope": "suffix"}).best_bets
    with pytest.raises(InvalidSite, match=r"best_bets: https://www\.site\.example/hours is not in the scope 'exact'"):
        Site.of("site.example", fields)


def test_a_stored_site_keeps_its_search_settings_and_ignores_fields_of_later_releases() -> None:
    fields = {"synonyms": ["tv, television"], "best_bets": [BEST_BET], "field_weights": {"title": "2"}}
    site = Site.of("site.example", fields)
    later = json.loads(site.to_json())
    later["best_bets"][0]["picture"] = "hours.png"
    assert Site.from_json(json.dumps(later).encode()) == Site.from_json(site.to_json()) == site


def test_a_synonym_finds_and_marks_the_words_that_it_stands_for(searcher: PackSearcher) -> None:
    assert paths(searcher, "telly") == set()
    apply(searcher, synonyms=["telly, television", "k8s, kubernetes, container orchestration"])
    assert paths(searcher, "telly") == {"/tv", "/drafts/tv"}
    hit = next(hit for hit in found(searcher, "telly plug").hits if hit.path == "/tv")
    assert [text for text, marked in hit.snippet.pieces if marked] == ["Plug", "television"]
    # A phrase is found where its words are adjacent, and stands for the word.
    assert paths(searcher, "k8s") == {"/clusters", "/orchestrate"}
    assert paths(searcher, "container orchestration") == {"/clusters", "/orchestrate", "/split"}
    assert paths(searcher, '"telly"') == set()
    assert paths(searcher, "television -telly") == {"/tv", "/drafts/tv"}


def test_a_synonym_with_an_arrow_holds_in_one_direction(searcher: PackSearcher) -> None:
    apply(searcher, synonyms=["kubernetes => container orchestration", "c++ => amber"])
    assert paths(searcher, "kubernetes") == {"/clusters", "/orchestrate"}
    assert paths(searcher, "container orchestration") == {"/orchestrate", "/split"}
    assert paths(searcher, "C++") == {"/amber", "/long"}


@given(st.text(max_size=60), st.text(alphabet='ab"*^():+-,=> {}ANDORT', max_size=40))
def test_a_rule_is_refused_or_its_phrases_are_searched_for_whatever_they_contain(first: str, second: str) -> None:
    for text in (first, f"{first}, {second}", f"{second} => {first}"):
        rule = None
        with suppress(ValueError):
            rule = read_rule(text)
        if rule is None:
            continue
        synonyms = Synonyms.of([rule])
        for phrase in rule.phrases:
            match = synonyms.expanded(parse(f"{phrase} ")).with_forms(("english",)).match
            assert _FTS5.execute("SELECT count(*) FROM sample WHERE sample MATCH ?", (match,)).fetchone() == (0,)


def test_the_file_of_the_guide_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "guides" / "sites.md").read_text(), re.DOTALL)
    (tmp_path / "sites.toml").write_text(block)
    site = Site.of("docs.example", read_declared(tmp_path / "sites.toml")["docs.example"])
    settings = settings_of(site)
    assert [each.title for each in settings.best_bets_for("Is it open when I come?")] == ["Opening hours"]
    assert settings.hides is not None
    assert [path for path in ("/drafts/a", "/a?print=1", "/a?b=1") if settings.hides(path)] == [
        "/drafts/a",
        "/a?print=1",
    ]


def test_synonyms_add_a_bounded_number_of_phrases_to_a_query() -> None:
    rules = [read_rule(", ".join(f"word{row}x{column}" for column in range(20))) for row in range(20)]
    query = Synonyms.of(rules).expanded(parse(" ".join(f"word{row}x0" for row in range(20))))
    assert sum(len(phrase.synonyms) for phrase in query.phrases) == 24


@pytest.mark.parametrize("fields", [{}, {"synonyms": ["amber, television", "amber trees, yew"]}])
def test_no_score_exceeds_the_bound_with_synonyms_and_weights(searcher: PackSearcher, fields: dict[str, Any]) -> None:
    apply(searcher, **fields, field_weights={"title": 0.1, "body": 10})
    for text in ("amber", "amber trees", "television", "yew"):
        hits = found(searcher, text)
        assert hits.hits
        assert max(hit.score for hit in hits.hits) <= hits.score_bound


def test_synonyms_do_not_rank_a_site_below_others(searcher: PackSearcher) -> None:
    def share(**fields: Any) -> float:
        apply(searcher, **fields)
        hits = found(searcher, "kubernetes clusters")
        return next(hit.score for hit in hits.hits if hit.path == "/clusters") / hits.score_bound

    words = ["amber", "television", "zebra", "unfinished", "missing", "plug", "nothing", *TREES]
    assert share(synonyms=[", ".join(["kubernetes", *words])]) == pytest.approx(share())
    # Where only synonyms are in the pack, they count as the word.
    apply(searcher, synonyms=["telly, television", "k8s, kubernetes"])
    bounds = [found(searcher, text).score_bound for text in ("television ", "telly ", "missing ")]
    assert bounds[0] == pytest.approx(bounds[1])
    assert bounds[1] < bounds[2]


def test_weights_of_fields_change_the_order_and_only_their_ratios_count(searcher: PackSearcher) -> None:
    def scores(**weights: float) -> dict[str, float]:
        apply(searcher, field_weights=weights)
        return {hit.path: hit.score for hit in found(searcher, "oak others -amber").hits}

    even = scores()
    assert scores(title=5, headings=5, anchors=5, description=5, body=5) == even
    assert scores(title=10)["/filler/oak"] > even["/filler/oak"] > scores(title=0.1)["/filler/oak"]


def test_hidden_paths_are_neither_found_nor_suggested_nor_counted(searcher: PackSearcher) -> None:
    assert "Television draft" in searcher.suggest("telev")
    assert searcher.suggest("zeb") == ("zebra",)
    assert found(searcher, "television").total == 2
    apply(searcher, hidden_paths=["/drafts/"])
    assert paths(searcher, "television") == {"/tv"}
    assert found(searcher, "television").total == 1
    assert found(searcher, "zebra").total == 0
    assert "Television draft" not in searcher.suggest("telev")
    assert searcher.suggest("zeb") == ()
    apply(searcher)
    assert found(searcher, "television").total == 2


def test_of_a_group_whose_shown_page_is_hidden_a_copy_is_shown_and_suggested(tmp_path: Path) -> None:
    named = {"/g": "Amber secret", "/old/g": "Amber plans", "/copy/of/g": "Amber help", "/copy/g": "Amber guide"}
    pages = [page(path, title, "Things.", canonical="https://site.example/g") for path, title in named.items()]
    with searching(tmp_path / "pack.sqlite", [*pages, *FILLER]) as searcher:
        (hit,) = found(searcher, "amber").hits
        assert (hit.path, hit.copies, searcher.suggest("amber")) == ("/g", 3, ("Amber secret",))
        apply(searcher, hidden_paths=["/g$", "/old/"])
        (hit,) = found(searcher, "amber").hits
        assert (hit.path, hit.copy_urls) == ("/copy/g", ("https://site.example/copy/of/g",))
        assert searcher.suggest("amber") == ("Amber guide",)


def test_a_hidden_page_is_no_alternate_of_another_one(tmp_path: Path) -> None:
    made = [
        *(page(f"/{lang}/a", f"Amber {lang}", f"amber {lang}", lang=lang) for lang in ("en", "de", "fr")),
        page("/other/a", "Amber de", "amber de", lang="de"),
    ]
    with searching(tmp_path / "pack.sqlite", made) as searcher:
        found = {}
        for paths in ((), ("/fr/",), ("/fr/", "/de/")):
            apply(searcher, hidden_paths=list(paths))
            (hit,) = [each for each in searcher.search(parse("amber"), languages=("en",)).hits if each.path == "/en/a"]
            found[paths] = [alternate.url.removeprefix("https://site.example") for alternate in hit.alternates]
    assert found == {(): ["/de/a", "/fr/a"], ("/fr/",): ["/de/a"], ("/fr/", "/de/"): ["/other/a"]}


def test_a_copy_is_ranked_as_the_hidden_page_that_it_is_shown_for(tmp_path: Path) -> None:
    guides = [page(path, "Printer guide", "How to set it up.") for path in ("/v1/x", "/v2/new/x")]
    news = page("/news/1", "News", "A printer guide: this printer guide is new. " * 5)
    with searching(tmp_path / "pack.sqlite", [*guides, news, *FILLER]) as searcher:
        first, *_ = before = found(searcher, "printer guide").hits
        assert [hit.path for hit in before] == ["/v1/x", "/news/1"]
        apply(searcher, hidden_paths=["/v1/"])
        shown = found(searcher, "printer guide")
        assert [hit.path for hit in shown.hits] == ["/v2/new/x", "/news/1"]
        assert (shown.total, shown.hits[0].score, shown.hits[0].copies) == (2, first.score, 0)
        sections = dict(next(facet.counts for facet in shown.facets if facet.name == "section"))
        assert sections == {"v2": 1, "news": 1}
        for section, paths in {"v1": [], "v2": ["/v2/new/x"]}.items():
            filtered = searcher.search(parse("printer guide"), filters=Filters(section=section))
            assert [hit.path for hit in filtered.hits] == paths


def test_adjacent_words_never_lower_a_score_that_synonyms_have_raised_above_the_bound() -> None:
    scores = {1: 9.0, 2: 8.0, 3: 1.0}
    assert list(promote(Promoted([], boosted=[2]), scores, bound=0.5)) == [1, 2, 3]
    assert promote(Promoted([], boosted=[3]), scores, bound=4.0)[3] == 2.0


def test_a_best_bet_is_shown_for_its_queries_and_not_counted(searcher: PackSearcher) -> None:
    apply(searcher, best_bets=[BEST_BET | {"text": "All days"}])
    expected = BestBet(url="https://site.example/hours", title="Hours", text="All days", domain="site.example")
    for text in ("opening HOURS", "Is the house open, and when?"):
        hits = found(searcher, text)
        assert (hits.best_bets, hits.total) == ((expected,), 0)
    for text in ("opening", "hours opening", "open amber"):
        assert found(searcher, text).best_bets == ()


def test_best_bets_of_several_sites_are_merged_and_only_the_first_page_has_them(tmp_path: Path) -> None:
    replies = {}
    for domain in ("a.example", "b.example"):
        pack = write_pack(tmp_path / f"{domain}.sqlite", PAGES, domain=domain)
        with closing(PackSearcher(pack)) as searcher:
            urls = [f"https://{domain}/{number}" for number in range(4)]
            bets = [{"queries": ["amber"], "url": url, "title": f"Bet {url[-1]}"} for url in urls]
            searcher.apply(settings_of(Site.of(domain, {"best_bets": bets})))
            replies[domain] = SearchReply(info=searcher.info, results=found(searcher, "amber"))
    request = SearchRequest(domains=("a.example", "b.example"), q="amber")
    merged = merge(request, replies, 0.0)
    assert [f"{each.domain} {each.title}" for each in merged.best_bets] == [
        *("a.example Bet 0", "a.example Bet 1", "a.example Bet 2"),
        *("b.example Bet 0", "b.example Bet 1"),
    ]
    assert merged.total == 4
    for other in (SearchRequest(domains=request.domains, q="amber", offset=2),
                  SearchRequest(domains=request.domains, q="amber", filters=Filters(lang="en"))):  # fmt: skip
        assert merge(other, replies, 0.0).best_bets == ()


@pytest.fixture
def packs() -> Iterator[OpenPacks]:
    with closing(OpenPacks(remove=Path.unlink, time_limit=5.0)) as packs:
        yield packs


def total_in(packs: OpenPacks, text: str) -> int:
    with packs.lend("site.example") as searcher:
        return found(searcher, text).total


def test_the_settings_are_read_again_after_the_store_has_failed(tmp_path: Path, packs: OpenPacks) -> None:
    store = folder_store(tmp_path / "store")
    reader = SearchSettingsReader(store, packs, kept=folder_store(tmp_path / "kept"), interval=0.01)
    with closing(reader):
        packs.put(VERSION, write_pack(tmp_path / "1.sqlite", PAGES))
        (tmp_path / "store").rename(tmp_path / "away")
        reader.start()
        (tmp_path / "away").rename(tmp_path / "store")
        add_site(store, Site.of("site.example", {"hidden_paths": ["/drafts/"]}))
        eventually(lambda: total_in(packs, "television") == 1, "the settings hold")


def total_of_process(folder: Path) -> int:
    """Return what a new searcher's process finds after its first reading of the store, which may fail."""
    store, kept = FolderStore(folder / "store"), folder_store(folder / "kept")
    packs = OpenPacks(remove=Path.unlink, time_limit=5.0)
    with closing(packs), closing(SearchSettingsReader(store, packs, kept=kept)) as reader:
        reader.start()
        packs.put(VERSION, write_pack(folder / "pack.sqlite", PAGES))
        return total_in(packs, "television")


def test_a_searcher_that_starts_without_the_store_or_with_an_empty_one_shows_no_hidden_page(tmp_path: Path) -> None:
    """An empty one is such as the folder on which the store is to be mounted: the orchestrator keeps all packs then."""
    store = folder_store(tmp_path / "store")
    create_marker(store)
    add_site(store, Site.of("site.example", {"hidden_paths": ["/drafts/"]}))
    assert total_of_process(tmp_path) == 1
    (tmp_path / "store").rename(tmp_path / "away")
    assert total_of_process(tmp_path) == 1
    folder_store(tmp_path / "store")
    assert [total_of_process(tmp_path), total_of_process(tmp_path)] == [1, 1]
    # With its marker, a store is believed: the operator started this process with it.
    create_marker(store)
    assert total_of_process(tmp_path) == 2
    (tmp_path / "store").rename(tmp_path / "empty")
    assert total_of_process(tmp_path) == 2


def test_another_store_and_one_that_was_emptied_change_no_settings(tmp_path: Path, packs: OpenPacks) -> None:
    store = folder_store(tmp_path / "store")
    create_marker(store)
    add_site(store, Site.of("site.example", {"hidden_paths": ["/drafts/"]}))
    reader = SearchSettingsReader(store, packs, kept=folder_store(tmp_path / "kept"))
    packs.put(VERSION, write_pack(tmp_path / "1.sqlite", PAGES))
    reader.read()
    (tmp_path / "store").rename(tmp_path / "away")
    for make in (folder_store, lambda path: create_marker(folder_store(path))):
        make(tmp_path / "store")
        with pytest.raises(StoreError, match="another store"):
            reader.read()
        assert total_in(packs, "television") == 1
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "away").rename(tmp_path / "store")
    store.delete(site_key("site.example"))
    reader.read()
    assert total_in(packs, "television") == 2


class Failing(FolderStore):
    """Fails to read and write while it is full or away."""

    fails = True

    def get(self, key: str) -> StoredObject:
        if self.fails and key == site_key("site.example"):
            raise StoreError("away")
        return super().get(key)

    def put(self, key: str, data: bytes, **conditions: Any) -> str:
        if self.fails:
            raise StoreError("No space left on device")
        return super().put(key, data, **conditions)


@pytest.mark.parametrize("failing", ["store", "kept"])
def test_what_could_not_be_read_or_kept_is_read_again_with_the_next_listing(
    tmp_path: Path, packs: OpenPacks, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    stores = {name: folder_store(tmp_path / name) for name in ("store", "kept")}
    add_site(stores["store"], Site.of("site.example", {"hidden_paths": ["/drafts/"]}))
    stores[failing] = failed = Failing(tmp_path / failing)
    reader = SearchSettingsReader(stores["store"], packs, kept=stores["kept"])
    packs.put(VERSION, write_pack(tmp_path / "1.sqlite", PAGES))
    for _ in range(2):
        reader.read()
        assert total_in(packs, "television") == (2 if failing == "store" else 1)
        assert list(stores["kept"].list("")) == []
    assert caplog.text.count("read again with the next listing") == 1
    failed.fails = False
    reader.read()
    assert total_in(packs, "television") == 1
    assert [stat.key for stat in stores["kept"].list("")] == [site_key("site.example")]


def test_a_searcher_reads_changed_settings_and_applies_them_to_present_and_later_packs(
    tmp_path: Path, packs: OpenPacks
) -> None:
    store = folder_store(tmp_path / "store")
    create_marker(store)
    reader = SearchSettingsReader(store, packs, kept=folder_store(tmp_path / "kept"))

    def totals() -> tuple[int, int]:
        return total_in(packs, "telly"), total_in(packs, "television")

    def change(**fields: Any) -> None:
        update_site(store, "site.example", lambda former: (former or Site.of("site.example", {})).changed(fields))
        reader.read()

    packs.put(VERSION, write_pack(tmp_path / "1.sqlite", PAGES))
    reader.read()
    assert totals() == (0, 2)
    change(synonyms=["telly, television"], hidden_paths=["/drafts/"])
    assert totals() == (1, 1)
    packs.put(replace(VERSION, sha256="2", generation=2), write_pack(tmp_path / "2.sqlite", PAGES))
    assert totals() == (1, 1)
    store.put("sites/other.example.json", b"?")
    change(synonyms=[], hidden_paths=["/tv"])
    assert totals() == (0, 1)
    store.delete("sites/site.example.json")
    reader.read()
    assert totals() == (0, 2)


def test_a_question_is_ranked_by_meaning_too_where_its_site_says_so(tmp_path: Path) -> None:
    pytest.importorskip("wordllama", reason="no wheel for this machine")
    question = "how do I get my lost files back?"
    words_only = page("/tale", "A tale", "Two files of soldiers lost the king's horse and came back.")
    answer = page("/restore", "Restore", "Recover deleted documents from a backup: restore lost files from an archive.")
    with searching(tmp_path / "pack.sqlite", [words_only, answer, *PAGES]) as searcher:
        plain = found(searcher, question).hits
        assert [hit.path for hit in plain] == ["/tale", "/restore"]
        apply(searcher, meaning=True)
        ordered = found(searcher, question).hits
        assert [hit.path for hit in ordered] == ["/restore", "/tale"]
        # The scores stay, so that those of several sites can be compared.
        assert [hit.score for hit in ordered] == [hit.score for hit in plain]
        assert found(searcher, "lost files back").hits[0].path == "/tale"


def test_a_searcher_without_the_package_ranks_by_words_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.path", [])
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    monkeypatch.setattr("sys.path_importer_cache", {})
    assert not settings_of(Site.of("site.example", {"meaning": True})).meaning
    assert "install perennial[meaning]" in caplog.text
