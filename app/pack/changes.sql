-- The rows that an update changes, as they were before it. Of a new row only id and page id are noted. A row may be written
-- twice. Within an upsert, OR IGNORE has no effect (https://sqlite.org/lang_createtrigger.html).
CREATE TEMP TABLE former_pages (
    id INTEGER PRIMARY KEY, page_id, url, canonical_key, path, lang, canonical, text_hash, hidden, shown_as, alternates,
    title, description, headings, subsections, anchors, name_forms, body_forms, body, inlinks, alternate_group, section, content_type,
    modified
);
CREATE INDEX temp.former_page_ids ON former_pages (page_id);

CREATE TEMP TRIGGER page_added AFTER INSERT ON main.pages BEGIN
    INSERT OR IGNORE INTO former_pages (id, page_id) VALUES (new.id, new.page_id);
END;

CREATE TEMP TRIGGER page_changed BEFORE UPDATE ON main.pages
WHEN NOT EXISTS (SELECT 1 FROM former_pages WHERE id = old.id) BEGIN
    INSERT INTO former_pages SELECT
        id, page_id, url, canonical_key, path, lang, canonical, text_hash, hidden, shown_as, alternates,
        title, description, headings, subsections, anchors, name_forms, body_forms, body, inlinks, alternate_group, section,
        content_type, modified FROM pages WHERE id = old.id;
END;

CREATE TEMP TRIGGER page_removed BEFORE DELETE ON main.pages BEGIN
    INSERT OR IGNORE INTO former_pages SELECT
        id, page_id, url, canonical_key, path, lang, canonical, text_hash, hidden, shown_as, alternates,
        title, description, headings, subsections, anchors, name_forms, body_forms, body, inlinks, alternate_group, section,
        content_type, modified FROM pages WHERE id = old.id;
END;

-- The links of pages whose rows were written, as they were before; NULL for a new page.
CREATE TEMP TABLE former_links (page_id TEXT PRIMARY KEY, anchors BLOB) WITHOUT ROWID;

CREATE TEMP TRIGGER links_added AFTER INSERT ON main.links BEGIN
    INSERT OR IGNORE INTO former_links (page_id, anchors) VALUES (new.page_id, NULL);
END;

CREATE TEMP TRIGGER links_changed BEFORE UPDATE ON main.links
WHEN NOT EXISTS (SELECT 1 FROM former_links WHERE page_id = old.page_id) BEGIN
    INSERT INTO former_links (page_id, anchors) VALUES (old.page_id, old.anchors);
END;

CREATE TEMP TRIGGER links_removed BEFORE DELETE ON main.links BEGIN
    INSERT OR IGNORE INTO former_links (page_id, anchors) VALUES (old.page_id, old.anchors);
END;

-- The texts of changed rows before and after the update, to count their words as the index does.
CREATE VIRTUAL TABLE temp.former_texts USING fts5 (
    title, headings, anchors, description, body, content = '', tokenize = "ascii"
);
CREATE VIRTUAL TABLE temp.present_texts USING fts5 (
    title, headings, anchors, description, body, content = '', tokenize = "ascii"
);
CREATE VIRTUAL TABLE temp.former_words USING fts5vocab (temp, former_texts, col);
CREATE VIRTUAL TABLE temp.present_words USING fts5vocab (temp, present_texts, col);
