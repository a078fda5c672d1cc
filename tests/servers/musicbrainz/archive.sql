-- The images of one archive. The words in braces are names of a project: {schema}, {table}, {types_table}, {entity}.

CREATE TABLE {schema}.art_type (
    id integer PRIMARY KEY,
    name text NOT NULL,
    parent integer REFERENCES {schema}.art_type,
    child_order integer NOT NULL DEFAULT 0,
    description text,
    gid uuid NOT NULL DEFAULT gen_random_uuid()
);

CREATE TABLE {schema}.{table} (
    id bigint PRIMARY KEY,
    {entity} integer NOT NULL REFERENCES musicbrainz.{entity} ON DELETE CASCADE,
    comment text NOT NULL DEFAULT '',
    edit integer NOT NULL REFERENCES musicbrainz.edit,
    ordering integer NOT NULL CHECK (ordering > 0),
    date_uploaded timestamptz NOT NULL DEFAULT now(),
    edits_pending integer NOT NULL DEFAULT 0 CHECK (edits_pending >= 0),
    mime_type text NOT NULL REFERENCES cover_art_archive.image_type
);

CREATE INDEX ON {schema}.{table} ({entity});

CREATE TABLE {schema}.{types_table} (
    id bigint NOT NULL REFERENCES {schema}.{table} ON DELETE CASCADE,
    type_id integer NOT NULL REFERENCES {schema}.art_type,
    PRIMARY KEY (id, type_id)
);

-- The first image of a type, by ordering, stands for its entity.
CREATE VIEW {schema}.index_listing AS
SELECT
    art.*,
    edit.close_time IS NOT NULL AS approved,
    art.id IS NOT DISTINCT FROM (
        SELECT front.id FROM {schema}.{table} AS front JOIN {schema}.{types_table} AS typed USING (id)
        WHERE front.{entity} = art.{entity} AND typed.type_id = 1 ORDER BY front.ordering, front.id LIMIT 1
    ) AS is_front,
    {back}
    ARRAY(
        SELECT art_type.name
        FROM {schema}.{types_table} AS typed JOIN {schema}.art_type ON art_type.id = typed.type_id
        WHERE typed.id = art.id
    ) AS types
FROM {schema}.{table} AS art LEFT JOIN musicbrainz.edit ON edit.id = art.edit;
