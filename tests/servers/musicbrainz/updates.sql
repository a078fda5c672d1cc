-- When a row last changed, and what was deleted: MusicBrainz notes both, and no indexer is told.

ALTER TABLE musicbrainz.artist ADD COLUMN IF NOT EXISTS last_updated timestamptz DEFAULT now();
ALTER TABLE musicbrainz.release ADD COLUMN IF NOT EXISTS last_updated timestamptz DEFAULT now();
ALTER TABLE musicbrainz.event ADD COLUMN IF NOT EXISTS last_updated timestamptz DEFAULT now();

CREATE TABLE IF NOT EXISTS musicbrainz.deleted_entity (
    gid uuid PRIMARY KEY,
    data jsonb NOT NULL,
    deleted_at timestamptz NOT NULL DEFAULT now()
);

CREATE FUNCTION musicbrainz.note_update() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NEW.last_updated = now();
    RETURN NEW;
END
$$;

CREATE TRIGGER artist_noted BEFORE UPDATE ON musicbrainz.artist
FOR EACH ROW EXECUTE FUNCTION musicbrainz.note_update();
CREATE TRIGGER release_noted BEFORE UPDATE ON musicbrainz.release
FOR EACH ROW EXECUTE FUNCTION musicbrainz.note_update();
CREATE TRIGGER event_noted BEFORE UPDATE ON musicbrainz.event
FOR EACH ROW EXECUTE FUNCTION musicbrainz.note_update();

-- The web site notes a deletion, and that of a merged entity, too; a trigger stands in for it.
CREATE FUNCTION musicbrainz.note_deletion() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO musicbrainz.deleted_entity (gid, data)
    VALUES (OLD.gid, jsonb_build_object('entity_type', TG_TABLE_NAME, 'entity_gid', OLD.gid))
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER release_deletion_noted AFTER DELETE ON musicbrainz.release
FOR EACH ROW EXECUTE FUNCTION musicbrainz.note_deletion();
CREATE TRIGGER event_deletion_noted AFTER DELETE ON musicbrainz.event
FOR EACH ROW EXECUTE FUNCTION musicbrainz.note_deletion();
