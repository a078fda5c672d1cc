-- One pack: the pages of one domain and their full-text index.
-- Version 2. The version is `PRAGMA user_version`; `application_id` spells PERN.
PRAGMA application_id = 0x5045524e;
PRAGMA user_version = 2;

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
-- keys: domain, kind (full | incremental), generation, crawl_id, built_at (UTC, ISO 8601), pages

-- Long texts stand last: SQLite reads a row from its beginning, through every page that it spills over.
CREATE TABLE pages (
    id           INTEGER PRIMARY KEY,
    object       TEXT NOT NULL UNIQUE,             -- the page's identity: content/<domain>/<object>.json
    etag         TEXT NOT NULL,                    -- of the stored object this row was made from
    key          TEXT NOT NULL UNIQUE,             -- canonical URL
    url          TEXT NOT NULL,
    path         TEXT NOT NULL,                    -- with the query
    section      TEXT NOT NULL DEFAULT '',         -- first folder of the path, decoded
    lang         TEXT NOT NULL DEFAULT '',
    modified     TEXT NOT NULL DEFAULT '',         -- the date that the page gives itself: 2026-11-21
    content_type TEXT NOT NULL DEFAULT '',
    canonical    TEXT NOT NULL DEFAULT '',         -- the key that the page names as its canonical one, or empty
    hidden       INTEGER NOT NULL DEFAULT 0,       -- 1 while `canonical` leads to another row of this pack
    title        TEXT NOT NULL DEFAULT '',
    description  TEXT NOT NULL DEFAULT '',
    headings     TEXT NOT NULL DEFAULT '',         -- one a line
    body         TEXT NOT NULL DEFAULT ''
);

CREATE INDEX pages_canonical ON pages (canonical) WHERE canonical <> '';

-- What a searcher keeps in memory of every page, without a look at the long rows.
CREATE INDEX pages_properties ON pages (hidden, section, lang, content_type, modified);

-- The words that most pages have, folded as in the index, and the number of pages of each. Written before shipping.
CREATE TABLE words (
    word TEXT PRIMARY KEY,
    docs INTEGER NOT NULL
) WITHOUT ROWID;

-- Tombstones that were seen in the store, so that the next increment need not read them again.
CREATE TABLE gone (
    object TEXT PRIMARY KEY,
    etag   TEXT NOT NULL
) WITHOUT ROWID;

-- What pages are called, for names are looked up often and are few: title without the name of the site, and headings,
-- of pages that are not hidden; rowid is pages.id. Written before shipping. Beginnings are indexed as well.
CREATE VIRTUAL TABLE names USING fts5 (
    title, headings,
    tokenize = "unicode61 remove_diacritics 2",
    prefix = '2 3'
);

-- External content: the text stands once, in `pages`; rowid is pages.id.
CREATE VIRTUAL TABLE pages_fts USING fts5 (
    title, headings, description, body,
    content = 'pages', content_rowid = 'id',
    tokenize = "unicode61 remove_diacritics 2"
);
