-- A pack of the former version, which searchers still read. No release writes it any more.
-- Version 2. The version is `PRAGMA user_version`; `application_id` spells PERN.
PRAGMA application_id = 0x5045524e;
PRAGMA user_version = 2;

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
-- Keys: domain, kind (full | incremental), generation, crawl_id, built_at (UTC, ISO 8601), pages.

-- Long texts are the last columns: SQLite reads a row from its beginning, through all its overflow pages.
CREATE TABLE pages (
    id           INTEGER PRIMARY KEY,
    object       TEXT NOT NULL UNIQUE,             -- page id: content/<domain>/<object>.json
    etag         TEXT NOT NULL,                    -- of the stored object that this row was made from
    key          TEXT NOT NULL UNIQUE,             -- canonical key
    url          TEXT NOT NULL,
    path         TEXT NOT NULL,                    -- with the query
    section      TEXT NOT NULL DEFAULT '',         -- first folder of the path, decoded
    lang         TEXT NOT NULL DEFAULT '',
    modified     TEXT NOT NULL DEFAULT '',         -- date of the page's own metadata: 2026-11-21
    content_type TEXT NOT NULL DEFAULT '',
    canonical    TEXT NOT NULL DEFAULT '',         -- canonical key of its rel=canonical, or empty
    hidden       INTEGER NOT NULL DEFAULT 0,       -- 1 while `canonical` leads to another row of this pack
    title        TEXT NOT NULL DEFAULT '',
    description  TEXT NOT NULL DEFAULT '',
    headings     TEXT NOT NULL DEFAULT '',         -- one a line
    body         TEXT NOT NULL DEFAULT ''
);

CREATE INDEX pages_canonical ON pages (canonical) WHERE canonical <> '';

-- The properties that a searcher keeps in memory of every page, read without the long rows.
CREATE INDEX pages_properties ON pages (hidden, section, lang, content_type, modified);

-- The most frequent words, folded as in the index, with the number of pages of each. Written when the pack is complete.
CREATE TABLE words (
    word TEXT PRIMARY KEY,
    docs INTEGER NOT NULL
) WITHOUT ROWID;

-- Tombstones in the store, recorded so that the next incremental pack does not read them again.
CREATE TABLE gone (
    object TEXT PRIMARY KEY,
    etag   TEXT NOT NULL
) WITHOUT ROWID;

-- Names of pages that are not hidden: title without the name of the site, and headings; rowid is pages.id. A small
-- index of its own, because names are searched often. Prefixes are indexed. Written when the pack is complete.
CREATE VIRTUAL TABLE names USING fts5 (
    title, headings,
    tokenize = "unicode61 remove_diacritics 2",
    prefix = '2 3'
);

-- External content: the text is stored once, in `pages`; rowid is pages.id.
CREATE VIRTUAL TABLE pages_fts USING fts5 (
    title, headings, description, body,
    content = 'pages', content_rowid = 'id',
    tokenize = "unicode61 remove_diacritics 2"
);
