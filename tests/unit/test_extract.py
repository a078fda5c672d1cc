"""What extractors find: rules on small documents, and two parsers that must agree on real and on made ones."""

from __future__ import annotations

import importlib
import pydoc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selectolax.lexbor import SelectolaxError

from app.crawl.parse.extract import lexbor
from app.crawl.parse.extract.beautifulsoup import BeautifulSoupExtractor
from app.crawl.parse.extract.contract import Anchor, Extract, Extractor
from app.crawl.parse.extract.lexbor import LexborExtractor
from app.storage.page_parts import MAX_ANCHOR, Block

pytestmark = pytest.mark.unit

LONG = "Words enough for a page of its own, more than fifty characters."

PAGE = f"""<!doctype html><html lang="en-GB"><head><title> A &amp;
 B </title><meta name=Robots content="NoIndex, follow"><meta name=perennial content="nofollow"><base href="/x/">
<meta name=description content=" one  two "><link rel="alternate Canonical" href=" /c "></head>
<body><nav><a href=n>Home</a><h2>Menu</h2></nav><header><h1>Top <i>1</i></h1></header>
<p>J<b>oh</b>n<br>Doe</p><p>co<!-- -->op</p><ul><li>one<li>two</ul>{LONG}<aside>advert</aside><footer>imprint</footer>
<svg><title>drawing</title></svg><script>var a = "<a href=never>";</script><style>p {{}}</style>
<noscript>enable it</noscript><template><a href=never>t</a></template>
<a href="q?a=1&amp;b=2">q</a> <a href=no rel="External NOFOLLOW">no</a><map><area href=m></map><iframe src=f></iframe>
<a name=x>no link</a> <a href="http://[bad">bad</a></body></html>"""

EXPECTED = Extract(
    title="A & B",
    description="one two",
    headings=("Top 1",),
    body=f"John Doe coop one two {LONG} q no no link bad",
    lang="en-GB",
    base="/x/",
    canonical="/c",
    robots=frozenset({"noindex", "follow", "nofollow"}),
    links=(Anchor("n", "Home"), Anchor("q?a=1&b=2", "q"), Anchor("m"), Anchor("f"), Anchor("http://[bad", "bad")),
    nofollow=("no",),
    blocks=(
        Block(("Home",), boilerplate=True),
        Block(("Menu",), "h2", boilerplate=True),
        Block(("Top 1",), "h1", boilerplate=True),
        Block(("John", "Doe", "coop")),
        Block(("one", "two"), "list"),
        Block((LONG,)),
        Block(("advert",), boilerplate=True),
        Block(("imprint",), boilerplate=True),
        Block(("q no", "no link bad")),
    ),
)

both = pytest.mark.parametrize("parser", [LexborExtractor(), BeautifulSoupExtractor()], ids=["lexbor", "bs4"])


@both
def test_all_fields_of_a_page_are_extracted(parser: Extractor) -> None:
    assert parser.extract(PAGE) == EXPECTED


@both
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("", Extract()),
        ("x", Extract(body="x")),
        ("<h2>two</h2><h1></h1><h1>one</h1>", Extract(title="one", headings=("two", "one"), body="two one")),
        ("<title>T</title><title>U</title>", Extract(title="T")),
        ("<p>a</p><p>b</p>c<div>d</div>e", Extract(body="a b c d e")),
        ("<table><tr><td>a<td>b<tr><th>c</table>", Extract(body="a b c")),
        ("<nav>only a menu</nav>", Extract(body="only a menu")),
        (f"<nav>menu</nav><p>{LONG}</p>", Extract(body=LONG)),
        (f'<div class="x navfooter"><h2>Up</h2><a href=u>Up</a></div>{LONG}',
         Extract(body=LONG, links=(Anchor("u", "Up"),))),
        (f"<nav class=breadcrumb><a>I</a> &gt; <a>II</a></nav>{LONG}", Extract(body=f"{LONG} I > II")),
        (f"<p class=breadcrumb><h1>N</h1></p><ol class=breadcrumbs><li>I</ol>{LONG}",
         Extract(title="N", headings=("N",), body=f"N {LONG}")),
        (f"<ul role=navigation><li>menu<div role=search>go</div></ul>{LONG}", Extract(body=LONG)),
        (f"<p class=navheaders>a</p><b class=footer>b</b>{LONG}", Extract(body=f"a b{LONG}")),
        (f"<div class=navbar><i><h1>N</h1></i></div>{LONG}", Extract(title="N", headings=("N",), body=f"N {LONG}")),
        ("<div class=footer>all there is</div>", Extract(body="all there is")),
        ("<title>T</title><frameset><frame src=a><frame src=b></frameset>",
         Extract(title="T", links=(Anchor("a"), Anchor("b")))),
        ("<a href>x</a><a href=''>y</a>", Extract(body="xy", links=(Anchor("", "x\ny"),))),
        ("<p>f(x)<a href=#f>¶</a><p>¶ 3 a¶b", Extract(body="f(x) ¶ 3 a¶b", links=(Anchor("", "¶"),))),
        ("<p>a\x00b\xa0c", Extract(body="ab c")),
        ("<title>Hand&shy;buch</title><h2>Hand\xadbuch</h2><p>Schiff&#173;fahrt<p>&shy;",
         Extract(title="Handbuch", headings=("Handbuch",), body="Handbuch Schifffahrt")),
        ("<p hidden>a</p><p style='color: red; DISPLAY : none'>b</p><b hidden>c<i>d</i></b><p hidden=until-found>e",
         Extract(body="e")),
        ("<p style='display:none-such'>a<p style='x-display:none'>b<div hidden><div hidden><h2>c</h2></div>d</div>",
         Extract(body="a b")),
        ("<body hidden><div style=display:none><h1>H</h1></div><main hidden>m",
         Extract(title="H", headings=("H",), body="H m")),
        ("a<button>b<button>c</button></button><h2><button>D</button></h2><details><summary><button>e</button></details>",
         Extract(headings=("D",), body="a D e")),
        ("<select><option>a<option>b</select><datalist><option>c</datalist>d", Extract(body="d")),
        ("<a href=x hidden>go<button>b</button></a>x", Extract(body="x", links=(Anchor("x", "go b"),))),
        ("a<img alt=' a  fern '>b<img alt=''><img><a href=u><img alt=Up></a>",
         Extract(body="a a fern b Up", links=(Anchor("u", "Up"),))),
        (f"<p class=breadcrumb>I <img alt=next> II</p>{LONG}", Extract(body=f"{LONG} I II")),
        ("<title>T</title><frameset><frame src=a><noframes><h1>No</h1> <b>frames</b></noframes></frameset>",
         Extract(title="T", headings=("No",), body="No frames", links=(Anchor("a"),))),
        ("<p>text<noframes>no frames</noframes>", Extract(body="text")),
        ("<frameset><noframes><noframes>a</noframes></frameset>", Extract()),
        ("<meta property=og:title content=' O '><meta property=og:description content=D><h1>H</h1>",
         Extract(title="O", description="D", headings=("H",), body="H")),
        ("<title>T</title><meta property=og:title content=O><meta property=og:description content=D>"
         "<meta name=description content=E>", Extract(title="T", description="E")),
        ("<html xml:lang=fr><p>x", Extract(lang="fr", body="x")),
        ("<html lang=de xml:lang=fr><p>x", Extract(lang="de", body="x")),
        (f"<header>site</header><article><header><h1>N</h1>by me</header>{LONG}</article>",
         Extract(title="N", headings=("N",), body=f"N by me {LONG}")),
        (f"<nav><main><header>menu</header></main></nav>{LONG}", Extract(body=LONG)),
        ("<meta name=robots content=none><meta name=robots content=', A ,'>", Extract(robots=frozenset({"none", "a"}))),
    ],
)  # fmt: skip
def test_a_rule_of_extraction_on_a_small_document(parser: Extractor, document: str, expected: Extract) -> None:
    assert replace(parser.extract(document), blocks=()) == expected


SECTIONS = f"""<div id=top><p class=breadcrumb>I <b>&gt;</b> II</p><h1>A<a href=#a>¶</a></h1><p>{LONG}<p>1<br>2</div>
<section id=b><div><h2>B</h2></div><ul><li>x<ul><li>y</ul></ul><h3 id=c>C</h3></section><h4><a name=d></a>D<br>E</h4>
<h5><span id=e>F</span></h5><table><tr><th>T<td><ol><li>z</ol></table><pre>code
 more</pre><div class=footer><ul><li>Up</ul>(c)</div>"""


@both
def test_the_text_of_a_page_is_divided_into_blocks(parser: Extractor) -> None:
    assert parser.extract(SECTIONS).blocks == (
        Block(("I > II",), "breadcrumb", boilerplate=True),
        Block(("A",), "h1", "top"),
        Block((LONG, "1", "2")),
        Block(("B",), "h2", "b"),
        Block(("x", "y"), "list"),
        Block(("C",), "h3", "c"),
        Block(("D", "E"), "h4", "d"),
        Block(("F",), "h5", "e"),
        Block(("T",), "table"),
        Block(("z",), "list"),
        Block(("code more",), "code"),
        Block(("Up",), "list", boilerplate=True),
        Block(("(c)",), boilerplate=True),
    )


@both
@pytest.mark.parametrize(
    ("document", "links"),
    [
        ("<a href=a#1></a><a href=b>B</a><a href=a#2> A  a </a><a href=a>A</a>", (("a", "A a\nA"), ("b", "B"))),
        ("<a href=a>J<b>oh</b>n<!-- x --> D.</a>", (("a", "John D."),)),
        ("<a href=a><div>One</div><div>t<i>w</i>o</div></a>", (("a", "One t w o"),)),
        ("<a href='a #1'>x</a><a href='#1'>y</a>", (("a #1", "x"), ("", "y"))),
        (f"<a href=a>{'x' * 999}</a>", (("a", "x" * MAX_ANCHOR),)),
    ],
)
def test_a_link_has_the_texts_of_its_anchors(
    parser: Extractor, document: str, links: tuple[tuple[str, str], ...]
) -> None:
    assert parser.extract(document).links == links


@both
@pytest.mark.parametrize("nul", ["\0", "&#0;", "&#x0;"])
def test_text_that_looks_like_a_mark_is_text(parser: Extractor, nul: str) -> None:
    found = parser.extract(
        f"<title>{nul}&lt;1</title>{nul}<h1>a</h1>{nul}&lt;7 {nul}&gt; {nul} &lt; > {nul}<textarea>{nul}&lt;0"
    )
    assert found.headings == ("a",)
    assert found.body.replace("\ufffd", "").split() == ["a", "<7", ">", "<", ">", "<0"]


DATED = """<head><meta name=Date content=2001-01-01><meta property="article:published_time" content="2002-01-01">
<script type="Application/LD+json">{"@graph": [{"dateModified": "2003-01-01", "about": {"dateModified": "-"}}]}</script>
<script>"dateModified"</script><script type=application/ld+json>{"dateModified": </script></head>
<time datetime=no>today</time><main><p><time>today</time> <time datetime="2004-01-01">then</time></p></main>"""


@both
@pytest.mark.parametrize(
    ("document", "dates"),
    [
        (DATED, ("2003-01-01", "2002-01-01", "2001-01-01", "2004-01-01")),
        ("<meta property=article:modified_time content=' 2026-11-21T10:00:00Z '>", ("2026-11-21T10:00:00Z",)),
        ("<meta http-equiv=last-modified content=b><meta itemprop=dateModified content=a>", ("a", "b")),
        ("<meta name=date><meta name=date content=a><meta name=date content=b>", ("a",)),
        ('<script type=application/ld+json>[{"dateModified": 2}, {"mainEntity": {"date": "x"}}]</script>', ("x",)),
        ("<article><div><time datetime=a></time></div></article><main><time datetime=b></time></main>", ("a",)),
        ("<time datetime=2026-11-21>of something else</time>", ()),
    ],
)  # fmt: skip
def test_the_dates_of_a_page_begin_with_its_last_change(
    parser: Extractor, document: str, dates: tuple[str, ...]
) -> None:
    assert parser.extract(document).dates == dates


@both
@pytest.mark.parametrize(
    ("heading", "text"), [("Files<a href=#f>¶</a>", "Files"), ("Files #", "Files"), ("C#", "C#"), ("§ 3", "§ 3")]
)
def test_a_heading_has_no_permalink_sign(parser: Extractor, heading: str, text: str) -> None:
    assert parser.extract(f"<h2>{heading}</h2>").headings == (text,)


@both
@pytest.mark.parametrize(
    "document",
    [
        pytest.param("<div>" * 5000 + "x", marks=pytest.mark.long),
        "<nav><b>" * 2000 + "x",
        "<div class=footer>" * 999,
        "\ud800<p>x",
        "<!--" * 99,
        "<" * 999,
    ],
)
def test_bad_markup_never_raises(parser: Extractor, document: str) -> None:
    assert len(parser.extract(document).body) <= len(document)


def test_a_document_that_lexbor_rejects_is_parsed_by_beautifulsoup(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(document: str) -> None:
        raise SelectolaxError(document[:10])

    monkeypatch.setattr(lexbor, "LexborHTMLParser", refuse)
    assert LexborExtractor().extract(PAGE) == EXPECTED


# Two parsers, one answer


@pytest.mark.parametrize(
    "name", ["calendar", "difflib", "json.decoder", "uuid", pytest.param("enum", marks=pytest.mark.long)]
)
def test_parsers_agree_on_a_real_page(name: str) -> None:
    html = pydoc.HTMLDoc()
    document = html.page(name, html.document(importlib.import_module(name)))
    found = LexborExtractor().extract(document)
    assert found == BeautifulSoupExtractor().extract(document)
    assert found.links
    assert len(found.body) > 500


texts = st.text(st.sampled_from("ab ä&<\n\xa0"), max_size=6).map(lambda s: s.replace("&", "&amp;").replace("<", "&lt;"))
inline = st.recursive(
    texts,
    lambda children: st.builds(
        "<{0[0]}{0[1]}>{1}</{0[0]}>{2}".format,
        st.sampled_from([("b", ""), ("i", ""), ("span", " lang=x"), ("code", ""), ("sub", "")]),
        children,
        texts,
    ),
    max_leaves=4,
)
anchors = st.builds(
    '<a href="{}"{}>{}</a>'.format,
    st.text(st.sampled_from("ab/.?=#: "), max_size=8),
    st.sampled_from(["", " rel=nofollow", ' rel="noopener NoFollow"', " rel=next"]),
    texts,
)
leaves = st.one_of(
    inline,
    anchors,
    st.sampled_from(
        [
            "<br>",
            "<hr>",
            "<img alt=x>",
            "<noscript><img alt=no></noscript>",
            "<p hidden>gone<b>gone</b></p>",
            "<i style='display: none'>gone</i>",
            "<button>push <i>it</i></button>",
            "<select><option>one</select>",
            "<!-- c -->",
            "<script>if (a < b) '<a href=no>'</script>",
            "<iframe src=f></iframe>",
            "<time datetime=t>then</time>",
            "<h3 id=j>three</h3>",
            "<h4><a name=k></a>four</h4>",
            "<table><tr><td>cell<td><ol><li>item</ol></table>",
        ]
    ),
)
ELEMENTS = [
    *(
        f"<{name}{{0}}>{{1}}</{name}>"
        for name in ("div", "section", "nav", "header", "footer", "aside", "main", "article", "blockquote")
    ),
    "<ul{0}><li>{1}</li></ul>",
]
blocks = st.recursive(
    st.one_of(leaves, st.builds("<{0}>{1}</{0}>".format, st.sampled_from(["p", "h1", "h2", "h6", "pre"]), inline)),
    lambda children: st.builds(
        lambda element, attributes, content: element.format(attributes, content),
        st.sampled_from(ELEMENTS),
        st.sampled_from(
            [
                "",
                " id=i",
                " role=navigation",
                ' class="a navfooter"',
                " class=breadcrumb",
                " role=main class=b",
                " itemprop=articleBody",
                " class=myComments",
                ' class="b widget"',
                " hidden",
            ]
        ),
        st.lists(children, max_size=4).map("".join),
    ),
    max_leaves=12,
)
documents = st.builds(
    "<!doctype html><html lang='{}'><head>{}</head><body>{}</body></html>".format,
    st.sampled_from(["", "de"]),
    st.lists(
        st.sampled_from(
            [
                "<title>T</title>",
                "<base href=b>",
                "<link rel=canonical href=c>",
                "<meta name=robots content=none>",
                "<meta name=date content=d>",
                '<script type=application/ld+json>{"dateModified": "m"}</script>',
            ]
        )
    ).map("".join),
    blocks,
)


@settings(max_examples=200, deadline=None)
@given(documents)
def test_parsers_agree_on_a_well_formed_document(document: str) -> None:
    assert LexborExtractor().extract(document) == BeautifulSoupExtractor().extract(document)


# Without <select> and <svg>, whose rules changed since html5lib was written.
TAGS = [
    "p", "div", "a", "b", "i", "table", "tr", "td", "ul", "li", "h1", "h3", "nav", "header", "aside", "span",
    "textarea", "title", "form", "a href=x", "a href=y rel=nofollow", "br",
]  # fmt: skip
pieces = [f"<{tag}>" for tag in TAGS] + [f"</{tag}>" for tag in TAGS] + ["word", "other", "&", "<", "text"]
soup = st.lists(st.sampled_from(pieces), max_size=25).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(soup)
def test_lexbor_agrees_with_html5lib_on_any_tag_soup(document: str) -> None:
    fast, slow = LexborExtractor().extract(document), BeautifulSoupExtractor("html5lib").extract(document)
    assert (fast.links, fast.title, fast.headings) == (slow.links, slow.title, slow.headings)
    assert fast.body.split() == slow.body.split()


@both
def test_terms_and_anchored_code_are_read_with_their_ids_and_entries_of_an_index_are_left_out(
    parser: Extractor,
) -> None:
    found = parser.extract(
        """<body><dl>
        <dt id="os.getpid">os.<code>getpid</code>()<a href="#os.getpid">¶</a></dt><dd>Returns it.</dd>
        <a name="coalesce"></a><dt><b>coalesce(<i>X</i>)</b></dt><dd>First one.</dd>
        <dt><a id="GUC-PORT"></a><span>port (<code>integer</code>)</span></dt><dd>The port.</dd>
        <dt id="entry1">port, <a href="config.html">Settings</a></dt>
        <dt id="entry2"><a href="other.html">Other</a></dt>
        <dt>no id</dt></dl>
        <p><a id="id-1" class="indexterm"></a> <code>pg_sleep</code> sleeps.
        <a id="here"></a>Text <code>no</code></p></body>"""
    )
    assert [tuple(term) for term in found.terms] == [
        ("os.getpid", "os.getpid()"),
        ("coalesce", "coalesce(X)"),
        ("GUC-PORT", "port (integer)"),
        ("id-1", "pg_sleep"),
    ]


@both
def test_the_id_of_a_heading_may_be_that_of_an_empty_anchor_before_it(parser: Extractor) -> None:
    found = parser.extract(
        '<body><h1>Bag</h1><a id="put(K)"><!-- --></a>\n<ul><li><h4>put</h4>Puts.</li></ul>'
        '<a name="x"></a>text<h4>y</h4>'
    )
    assert [(block.id, block.lines) for block in found.blocks if block.kind == "h4"] == [
        ("put(K)", ("put",)),
        ("", ("y",)),
    ]


@both
def test_a_link_that_names_a_fragment_keeps_it(parser: Extractor) -> None:
    found = parser.extract(
        '<body><a href="p.html#pragma_size">size</a> <a href="p.html#size">here</a>'
        '<a href="#s%C3%BC%C3%9F">süß()</a></body>'
    )
    assert [link.text for link in found.links] == ["size\tpragma_size\nhere", "süß()\tsüß"]


@pytest.mark.parametrize("parser", [LexborExtractor("Acme-Bot"), BeautifulSoupExtractor(robot="Acme-Bot")])
def test_directives_for_one_robot_are_for_the_one_of_the_user_agent(parser: Extractor) -> None:
    metas = "".join(f'<meta name="{name}" content="{name}-says">' for name in ("acme-bot", "Perennial", "robots"))
    assert parser.extract(metas).robots == {"acme-bot-says", "robots-says"}
