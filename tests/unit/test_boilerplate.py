"""Which text of a page is its own: documents as news sites, blogs and documentation have them, and the laws."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.crawl.read.extract.boilerplate import HINTED, IN_BOILERPLATE, IN_HEADER, OWN, PlacedBlock, separated
from app.crawl.read.extract.contract import Extractor
from app.crawl.read.extract.extractors import extractor
from app.storage.page_parts import HEADINGS, KINDS, Block

pytestmark = pytest.mark.unit

OWN_TEXT = "A storm is coming. It will be over the coast by Friday morning, and it will stay until Sunday."
LINKS = "<ul><li><a href=a>Weather</a><li><a href=b>Sport today</a><li><a href=c>Sea</a></ul>"

both = pytest.mark.parametrize("parser", [extractor("lexbor"), extractor("beautifulsoup")], ids=["lexbor", "bs4"])


@both
@pytest.mark.parametrize(
    ("document", "body"),
    [
        # What is outside of the page's own part.
        (f"<p>Sign in<main><p>{OWN_TEXT}</main><p>Follow us", OWN_TEXT),
        (f"<p>Sign in<section role=main class=with-sidebar><p>{OWN_TEXT}</section>Follow us", OWN_TEXT),
        (f"<p>Sign in<article><p>{OWN_TEXT}</article><p>Follow us", OWN_TEXT),
        (f"<main><p>Print<article><p>{OWN_TEXT}</article>Follow us</main>", OWN_TEXT),
        (f"<article><p>Print<div itemprop=articleBody>{OWN_TEXT}</div>Follow us</article>", OWN_TEXT),
        (f"<article><p>{OWN_TEXT}</article><article>And more: {OWN_TEXT}</article><p>Sign in",
         f"{OWN_TEXT} And more: {OWN_TEXT}"),
        (f"<p>{OWN_TEXT}<article>{OWN_TEXT[:34]}</article><article>{OWN_TEXT[35:70]}</article>",
         f"{OWN_TEXT} {OWN_TEXT[:70]}"),
        # An empty part that a script would fill is not the page's, nor is a short one.
        (f"<main>Please wait</main><p>{OWN_TEXT}", f"Please wait {OWN_TEXT}"),
        (f"<nav>Menu</nav><main>Please wait a while</main><p>{OWN_TEXT[:44]}",
         f"Please wait a while {OWN_TEXT[:44]}"),
        # What a class hints at.
        (f"<p>{OWN_TEXT}<div class=theComments>I doubt it.</div><div class='w Related-2'>Sun</div>",
         OWN_TEXT),
        (f"<div class='widget meteo'>Sun</div><div class=a-widget>{OWN_TEXT}</div>", OWN_TEXT),
        (f"<div class=content-sidebar><h1>Storm</h1>{OWN_TEXT}</div>", f"Storm {OWN_TEXT}"),
        (f"<div class=content-sidebar><div role=main>{OWN_TEXT}</div>Sun</div>", OWN_TEXT),
        (f"<div id=comments>{OWN_TEXT}</div><p>Sun", f"{OWN_TEXT} Sun"),
        (f"<p>How do I parse it?<div class=comment>{OWN_TEXT * 9}</div>", f"How do I parse it? {OWN_TEXT * 9}"),
        # Lists of links.
        (f"{LINKS}<p>{OWN_TEXT}<h2>Go on</h2><a href=a>Weather</a> | <a href=b>Sport today</a><br><a href=c>Sea</a>",
         OWN_TEXT),
        (f"<p>{OWN_TEXT}<table><tr><td><a href=a>a-package</a><td><a href=b>b-package</a></table>",
         f"{OWN_TEXT} a-package b-package"),
        (f"<p>{OWN_TEXT}<p><a href=a>One link.</a>", f"{OWN_TEXT} One link."),
        (f"<p>The manual.{LINKS}", "The manual. Weather Sport today Sea"),
        # Headings of sections that have nothing else.
        (f"<h2>Storm</h2><p>{OWN_TEXT}<h2>More</h2><h3>From us</h3>{LINKS}", f"Storm {OWN_TEXT}"),
        (f"<h2>Storm</h2>{LINKS}<h3>Friday</h3><p>{OWN_TEXT}", f"Storm Friday {OWN_TEXT}"),
        (f"<p>{OWN_TEXT}<h1>Storm</h1>{LINKS}", f"{OWN_TEXT} Storm"),
        (f"<p>{OWN_TEXT}<h2>See also</h2>", f"{OWN_TEXT} See also"),
    ],
)  # fmt: skip
def test_the_body_is_the_own_text_of_a_page(parser: Extractor, document: str, body: str) -> None:
    assert parser.extract(document).body == body


@both
def test_headings_are_those_of_own_text_and_of_the_header_and_the_first_level(parser: Extractor) -> None:
    document = (
        f"<header><h2>Weather</h2></header><h1>Storm</h1><h2>Sign in</h2><main><h2>Friday</h2>{OWN_TEXT}"
        f"<h2>More</h2>{LINKS}</main><div class=footer><h2>About</h2></div>"
    )
    assert parser.extract(document).headings == ("Weather", "Storm", "Friday")


lines = st.lists(st.sampled_from(["home", "up | home", "a | b", "text of its own", "x"]), min_size=1, max_size=4)
pages = st.lists(
    st.builds(
        PlacedBlock,
        st.builds(Block, lines.map(tuple), st.sampled_from(sorted(KINDS)), st.just(""), st.just(False)),
        st.sampled_from([OWN, OWN, HINTED, IN_HEADER, IN_BOILERPLATE]),
        st.integers(0, 15),
    ),
    max_size=12,
)


@given(pages)
def test_blocks_are_only_marked_and_some_own_text_is_left(placed: Sequence[PlacedBlock]) -> None:
    blocks = separated(placed, {"home", "up"})
    assert [(block.lines, block.kind) for block in blocks] == [(each.block.lines, each.block.kind) for each in placed]
    assert all(block.boilerplate for block, each in zip(blocks, placed, strict=True) if each.region > HINTED)
    texts = [each for each in placed if each.region <= HINTED and each.block.kind not in HEADINGS]
    if len(texts) == sum(each.region <= HINTED for each in placed) > 0:
        assert not all(block.boilerplate for block in blocks)
