-- Which change of one archive's tables queues which events. The words in braces are names of a project.

CREATE FUNCTION {schema}.queue_index(of_entity integer, parents bigint[] DEFAULT NULL) RETURNS void
LANGUAGE sql AS $$
    SELECT artwork_indexer.push({entity_type}, 'index', jsonb_build_object('gid', gid), parents)
    FROM musicbrainz.{entity} WHERE id = of_entity
$$;

CREATE FUNCTION {schema}.has_art(of_entity integer) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM {schema}.{table} WHERE {entity} = of_entity)
$$;

CREATE FUNCTION {schema}.file_of(image {schema}.{table}, of_gid uuid) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('artwork_id', image.id, 'gid', of_gid, 'suffix', suffix)
    FROM cover_art_archive.image_type WHERE mime_type = image.mime_type
$$;

-- What nobody needs any more of an entity that loses its item.
CREATE FUNCTION {schema}.forget_index(of_gid uuid) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM artwork_indexer.event_queue
    WHERE state = 'queued' AND entity_type = {entity_type} AND action = 'index'
    AND message = jsonb_build_object('gid', of_gid)
$$;

CREATE FUNCTION {schema}.art_added() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.queue_index(NEW.{entity});
    RETURN NULL;
END
$$;

CREATE TRIGGER art_added AFTER INSERT ON {schema}.{table}
FOR EACH ROW EXECUTE FUNCTION {schema}.art_added();

-- An image that goes to another entity is copied, then deleted, then both listings follow.
CREATE FUNCTION {schema}.art_updated() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    old_gid uuid;
    new_gid uuid;
    file jsonb;
    parents bigint[];
BEGIN
    IF OLD.{entity} = NEW.{entity} THEN
        PERFORM {schema}.queue_index(NEW.{entity});
        RETURN NULL;
    END IF;
    SELECT gid INTO old_gid FROM musicbrainz.{entity} WHERE id = OLD.{entity};
    SELECT gid INTO new_gid FROM musicbrainz.{entity} WHERE id = NEW.{entity};
    file := {schema}.file_of(OLD, old_gid);
    parents := ARRAY[artwork_indexer.push(
        {entity_type},
        'copy_image',
        (file - 'gid') || jsonb_build_object('old_gid', old_gid, 'new_gid', new_gid)
    )];
    parents := ARRAY[artwork_indexer.push({entity_type}, 'delete_image', file, parents)];
    PERFORM {schema}.queue_index(NEW.{entity}, parents);
    IF {schema}.has_art(OLD.{entity}) THEN
        PERFORM {schema}.queue_index(OLD.{entity}, parents);
    ELSE
        PERFORM {schema}.forget_index(old_gid);
        PERFORM artwork_indexer.push({entity_type}, 'deindex', jsonb_build_object('gid', old_gid), parents);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER art_updated AFTER UPDATE ON {schema}.{table}
FOR EACH ROW EXECUTE FUNCTION {schema}.art_updated();

-- A single deleted image. The images of a deleted entity have none any more.
CREATE FUNCTION {schema}.art_deleted() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    of_gid uuid;
BEGIN
    SELECT gid INTO of_gid FROM musicbrainz.{entity} WHERE id = OLD.{entity};
    IF of_gid IS NOT NULL THEN
        PERFORM {schema}.queue_index(
            OLD.{entity},
            ARRAY[artwork_indexer.push({entity_type}, 'delete_image', {schema}.file_of(OLD, of_gid))]
        );
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER art_deleted AFTER DELETE ON {schema}.{table}
FOR EACH ROW EXECUTE FUNCTION {schema}.art_deleted();

CREATE FUNCTION {schema}.art_typed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.queue_index(art.{entity}) FROM {schema}.{table} AS art WHERE art.id = coalesce(NEW.id, OLD.id);
    RETURN NULL;
END
$$;

CREATE TRIGGER art_typed AFTER INSERT OR DELETE ON {schema}.{types_table}
FOR EACH ROW EXECUTE FUNCTION {schema}.art_typed();

CREATE FUNCTION {schema}.entity_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF {schema}.has_art(NEW.id) THEN
        PERFORM {schema}.queue_index(NEW.id);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER {schema_changed} AFTER UPDATE ON musicbrainz.{entity}
FOR EACH ROW WHEN (to_jsonb(OLD) - 'last_updated' <> to_jsonb(NEW) - 'last_updated')
EXECUTE FUNCTION {schema}.entity_changed();

CREATE FUNCTION {schema}.entity_deleted() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.forget_index(OLD.gid);
    IF {schema}.has_art(OLD.id) THEN
        PERFORM artwork_indexer.push({entity_type}, 'delete_image', {schema}.file_of(art, OLD.gid))
        FROM {schema}.{table} AS art WHERE art.{entity} = OLD.id ORDER BY art.ordering, art.id;
        PERFORM artwork_indexer.push({entity_type}, 'deindex', jsonb_build_object('gid', OLD.gid));
    END IF;
    RETURN OLD;
END
$$;

CREATE TRIGGER {schema_deleted} BEFORE DELETE ON musicbrainz.{entity}
FOR EACH ROW EXECUTE FUNCTION {schema}.entity_deleted();
