-- One pack: the pages of one domain and their full-text index.
-- Version 1. The version is `PRAGMA user_version`; `application_id` spells PERN.
PRAGMA application_id = 0x5045524e;
PRAGMA user_version = 1;

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
-- Keys: domain, kind (full | incremental), generation, crawl_id, built_at (UTC, ISO 8601), pages, stemmers: Snowball's names
-- of the algorithms by which many pages are stemmed, with spaces between; site_name: the parts that titles share, one a line;
-- language: that of the start page; repeated_lines: CRC-32 of the lines that many pages repeat; changes: the pages that changed
-- since these four were determined; updated: rows indexed again since the indexes were written as one; ordered:
-- the last row id up to which pages are in order of quality; and code_hash: that of the code that wrote the pack.

-- Long texts are the last columns: SQLite reads a row from its beginning, through all its overflow pages.
CREATE TABLE pages (
    -- A full pack gives ids from 1 on in order of quality. None is used again: a later row is not in that order.
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    page_id       TEXT NOT NULL UNIQUE,             -- of content/<domain>/<page_id>.json
    canonical_key TEXT NOT NULL UNIQUE,
    url           TEXT NOT NULL,
    path          TEXT NOT NULL,                    -- with the query
    section       TEXT NOT NULL DEFAULT '',         -- first folder of the path, decoded
    lang          TEXT NOT NULL DEFAULT '',
    modified      TEXT NOT NULL DEFAULT '',         -- date of the page's own metadata: 2026-11-21
    content_type  TEXT NOT NULL DEFAULT '',
    canonical     TEXT NOT NULL DEFAULT '',         -- canonical key of its rel=canonical, or empty
    text_hash     INTEGER NOT NULL DEFAULT 0,       -- of title and body, 64 bits; 0 without a body
    hidden        INTEGER NOT NULL DEFAULT 0,       -- 1 while another page of its group is shown
    shown_as      INTEGER NOT NULL DEFAULT 0,       -- id of that page; 0 for a page that is shown itself
    alternates    TEXT NOT NULL DEFAULT '',         -- URLs that the page names as itself in other languages, one a line
    inlinks       INTEGER NOT NULL DEFAULT 0,       -- pages of this pack with a link to this one
    alternate_group INTEGER NOT NULL DEFAULT 0,     -- a number that the same page in other languages has, too; 0 without any
    title         TEXT NOT NULL DEFAULT '',
    description   TEXT NOT NULL DEFAULT '',
    headings      TEXT NOT NULL DEFAULT '',         -- one a line
    subsections   TEXT NOT NULL DEFAULT '',         -- fragment, tab and heading of each section with an id, one a line
    anchors       TEXT NOT NULL DEFAULT '',         -- what links of other pages call this one, one a line
    name_forms    TEXT NOT NULL DEFAULT '',         -- stems and parts of words in title, headings and anchors
    body_forms    TEXT NOT NULL DEFAULT '',         -- the same of description and body; of words that are not in them
    body          TEXT NOT NULL DEFAULT ''          -- each line ends with what it is, as in app/text/lines.py
);

-- The pages of each group that are not shown.
CREATE INDEX pages_copies ON pages (shown_as) WHERE hidden;

-- What makes pages a group, so that an incremental pack reads the groups of changed pages only.
CREATE INDEX pages_texts ON pages (text_hash) WHERE text_hash <> 0;
CREATE INDEX pages_canonical ON pages (canonical) WHERE canonical <> '';

-- The same pages in other languages.
CREATE INDEX pages_alternate_group ON pages (alternate_group) WHERE alternate_group > 0;

-- What a searcher keeps in memory of every page: arrays of numbers, so that it need not read the rows. Written when the pack is
-- complete. section, lang and type (of the content) are indexes of `texts`; date is 20261121, or 0; inlinks, alternate_group and
-- shown_as are the columns. Each has one number for every row id from 0 on. Of the pages that are not shown, `copies` has the
-- ids and `shown` the ids of the pages that are shown for them, in order of the latter.
CREATE TABLE properties (
    name    TEXT PRIMARY KEY,
    width   TEXT NOT NULL,                -- B, H or I: unsigned integers of 1, 2 or 4 bytes, little-endian
    numbers BLOB NOT NULL,
    texts   TEXT NOT NULL                 -- an array in JSON
);

-- The most frequent words, folded as in the index, with the number of pages of each. Written when the pack is complete.
CREATE TABLE words (
    word TEXT PRIMARY KEY,
    docs INTEGER NOT NULL
) WITHOUT ROWID;

-- The stored objects that the rows of pages were made from, and tombstones, so that the next incremental pack reads others only.
CREATE TABLE stored (
    page_id TEXT PRIMARY KEY,
    etag    TEXT NOT NULL,
    version TEXT                          -- with which the store has listed this ETag, or NULL
) WITHOUT ROWID;

-- Names that pages define, so that a query which is a name is one look-up: the folded words of the name's last part, the
-- best definition first. Written when the pack is complete.
CREATE TABLE definitions (
    name      TEXT NOT NULL,
    rank      INTEGER NOT NULL,
    kind      INTEGER NOT NULL,           -- 0 page of its own, 1 section with this id, 2 other section, 3 fragment that links name, 4 ordinary word
    called    INTEGER NOT NULL,           -- other pages that call the page or section so
    page      INTEGER NOT NULL,           -- pages.id
    fragment  TEXT NOT NULL,              -- empty for the whole page
    full_name TEXT NOT NULL,              -- as it is written: collections.OrderedDict; empty if the fragment is the same
    PRIMARY KEY (name, rank)
) WITHOUT ROWID;

-- Links of each page with their texts, compressed, so that the next incremental pack knows what a changed page called others.
CREATE TABLE links (
    page_id TEXT PRIMARY KEY,
    anchors BLOB NOT NULL
) WITHOUT ROWID;

-- The addresses of pages, 64 bits of a hash each: that of the key, and that of the URL if it differs.
CREATE TABLE addresses (
    address  INTEGER NOT NULL,
    is_other INTEGER NOT NULL,            -- 0 for the key
    page_id  TEXT NOT NULL,
    PRIMARY KEY (address, is_other, page_id)
) WITHOUT ROWID;

CREATE INDEX addresses_page_ids ON addresses (page_id);

-- What links call each address, whether or not a page has it, and how many pages do, so that an incremental pack joins the
-- texts of the links to a page without reading the pages that they are on.
CREATE TABLE link_texts (
    target        INTEGER NOT NULL,       -- the address
    text          TEXT NOT NULL,
    fragment      TEXT NOT NULL,
    pages         INTEGER NOT NULL,       -- other pages with a link of this text to this fragment
    first_of_text INTEGER NOT NULL,       -- those of them of which it is the first fragment with this text
    first_of_page INTEGER NOT NULL,       -- those of them of which it is the first link to the address
    own           INTEGER NOT NULL,       -- 1 if the page itself has such a link
    PRIMARY KEY (target, text, fragment)
) WITHOUT ROWID;

CREATE INDEX link_texts_texts ON link_texts (text) WHERE first_of_text > 0;

-- CRC-32 of the lines of each page's text, four bytes each (little-endian), so that the next incremental pack can find the
-- lines that many pages repeat; and of those that its body therefore lacks.
CREATE TABLE lines (
    page_id TEXT PRIMARY KEY,
    hashes  BLOB NOT NULL,
    removed BLOB
) WITHOUT ROWID;

-- The four indexes are contentless: their words are folded, as in app/text/words.py, so that FTS5 only splits them.

-- Names of pages that are not hidden: title without the name of the site, headings and anchor texts; rowid is pages.id. A
-- small index of its own, because names are searched often. Prefixes are indexed. Written when the pack is complete, as the
-- two indexes of stems are.
CREATE VIRTUAL TABLE names USING fts5 (
    title, headings, anchors,
    content = '',
    tokenize = "ascii",
    prefix = '2 3'
);

-- The same names with a stem in place of each word, so that all its forms count as one word.
CREATE VIRTUAL TABLE name_stems USING fts5 (
    title, headings, anchors,
    content = '',
    tokenize = "ascii"
);

-- Stems of the words of each passage of a text, without stop words. rowid is pages.id * 4096 plus the passage's number.
CREATE VIRTUAL TABLE passages USING fts5 (
    text,
    content = '',
    tokenize = "ascii"
);

-- All texts of pages; rowid is pages.id.
CREATE VIRTUAL TABLE pages_fts USING fts5 (
    title, headings, anchors, description, name_forms, body_forms, body,
    content = '',
    tokenize = "ascii"
);
