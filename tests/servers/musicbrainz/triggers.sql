-- Which change of one archive's tables publishes what. The words in braces are names of a project, {exchange} a text.

CREATE FUNCTION {schema}.publish_index(of_entity integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM amqp.publish(1, {exchange}, 'index', entity.gid::text)
    FROM musicbrainz.{entity} AS entity
    WHERE entity.id = of_entity AND EXISTS (SELECT FROM {schema}.{table} AS art WHERE art.{entity} = of_entity);
END
$$;

-- An entity is written anew whichever column changed, once, if it has images.
CREATE FUNCTION {schema}.entity_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.publish_index(NEW.id);
    RETURN NULL;
END
$$;

CREATE TRIGGER {schema_changed} AFTER INSERT OR UPDATE ON musicbrainz.{entity}
FOR EACH ROW EXECUTE FUNCTION {schema}.entity_changed();

-- The files of a deleted entity: its images, which are still there before the deletion, and its listing in any case.
CREATE FUNCTION {schema}.entity_deleted() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM amqp.publish(1, {exchange}, 'delete', concat_ws(E'\n', art.id, OLD.gid, art.suffix))
    FROM (
        SELECT id, suffix
        FROM {schema}.{table} JOIN cover_art_archive.image_type USING (mime_type)
        WHERE {entity} = OLD.id
        ORDER BY ordering, id
    ) AS art;
    PERFORM amqp.publish(1, {exchange}, 'delete', concat_ws(E'\n', 'index.json', OLD.gid));
    RETURN OLD;
END
$$;

CREATE TRIGGER {schema_deleted} BEFORE DELETE ON musicbrainz.{entity}
FOR EACH ROW EXECUTE FUNCTION {schema}.entity_deleted();

-- An image that goes to another entity is moved first; then its new entity alone is written anew.
CREATE FUNCTION {schema}.art_moved() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM amqp.publish(
        1, {exchange}, 'move', concat_ws(E'\n', NEW.id, old_entity.gid, new_entity.gid, image_type.suffix) || E'\n'
    )
    FROM musicbrainz.{entity} AS old_entity, musicbrainz.{entity} AS new_entity, cover_art_archive.image_type
    WHERE old_entity.id = OLD.{entity} AND new_entity.id = NEW.{entity} AND image_type.mime_type = NEW.mime_type;
    RETURN NEW;
END
$$;

CREATE TRIGGER art_moved BEFORE UPDATE ON {schema}.{table}
FOR EACH ROW WHEN (OLD.{entity} <> NEW.{entity}) EXECUTE FUNCTION {schema}.art_moved();

-- An image that is deleted is taken from the listing; nobody tells the archive to delete its file. When it was the last
-- one, or its entity goes with it, there is still a listing to be emptied, or no entity left to say it of.
CREATE FUNCTION {schema}.art_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM amqp.publish(1, {exchange}, 'index', entity.gid::text)
    FROM musicbrainz.{entity} AS entity
    WHERE entity.id = coalesce(NEW.{entity}, OLD.{entity});
    RETURN NULL;
END
$$;

CREATE TRIGGER art_changed AFTER INSERT OR UPDATE OR DELETE ON {schema}.{table}
FOR EACH ROW EXECUTE FUNCTION {schema}.art_changed();

CREATE FUNCTION {schema}.art_typed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {schema}.publish_index(art.{entity}) FROM {schema}.{table} AS art WHERE art.id = coalesce(NEW.id, OLD.id);
    RETURN NULL;
END
$$;

CREATE TRIGGER art_typed AFTER INSERT OR UPDATE OR DELETE ON {schema}.{types_table}
FOR EACH ROW EXECUTE FUNCTION {schema}.art_typed();

-- When all is done, the images of an entity are numbered 1, 2, 3 ... again; each that gets another number is a change.
CREATE FUNCTION {schema}.resequence() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.{table} AS art
    SET ordering = numbered.place
    FROM (
        SELECT id, row_number() OVER (PARTITION BY {entity} ORDER BY ordering, id) AS place
        FROM {schema}.{table}
        WHERE {entity} IN (OLD.{entity}, NEW.{entity})
    ) AS numbered
    WHERE art.id = numbered.id AND art.ordering <> numbered.place;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER resequence AFTER INSERT OR UPDATE OR DELETE ON {schema}.{table}
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.resequence();
