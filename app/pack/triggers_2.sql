-- The triggers of a pack of version 2: a check compares them.
CREATE TRIGGER IF NOT EXISTS pages_inserted AFTER INSERT ON pages BEGIN
    INSERT INTO pages_fts (rowid, title, headings, description, body)
    VALUES (new.id, new.title, new.headings, new.description, new.body);
END;

CREATE TRIGGER IF NOT EXISTS pages_deleted AFTER DELETE ON pages BEGIN
    INSERT INTO pages_fts (pages_fts, rowid, title, headings, description, body)
    VALUES ('delete', old.id, old.title, old.headings, old.description, old.body);
END;

CREATE TRIGGER IF NOT EXISTS pages_updated AFTER UPDATE OF id, title, headings, description, body ON pages BEGIN
    INSERT INTO pages_fts (pages_fts, rowid, title, headings, description, body)
    VALUES ('delete', old.id, old.title, old.headings, old.description, old.body);
    INSERT INTO pages_fts (rowid, title, headings, description, body)
    VALUES (new.id, new.title, new.headings, new.description, new.body);
END;
