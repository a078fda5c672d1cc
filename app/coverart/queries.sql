-- Reads of MusicBrainz's database. Each query begins with a line with its name; a project fills in the braces.

-- name: entity
-- One row for each image in order, or one row without an image. The gid of a merged entity returns its target. The
-- view says which image is the front or the back; its array of types has no order, so they are read anew, by number.
-- Both arrays are the merges into the entity: gids, and seconds since. The column `created` may be NULL.
SELECT
    entity.gid::text,
    ARRAY(SELECT gid::text FROM musicbrainz.{redirect} WHERE new_id = entity.id ORDER BY gid) AS merged,
    ARRAY(
        SELECT coalesce(extract(EPOCH FROM clock_timestamp() - created), 'infinity')::double precision
        FROM musicbrainz.{redirect} WHERE new_id = entity.id ORDER BY gid
    ) AS merged_ago,
    art.id,
    art.suffix,
    art.comment,
    art.edit,
    art.approved,
    art.is_front,
    art.is_back,
    art.types
FROM musicbrainz.{entity} AS entity
LEFT JOIN LATERAL (
    SELECT
        listing.id,
        image_type.suffix,
        listing.comment,
        listing.edit,
        listing.approved,
        listing.is_front,
        {is_back} AS is_back,
        ARRAY(
            SELECT art_type.name
            FROM {schema}.{types_table} AS typed JOIN {schema}.art_type ON art_type.id = typed.type_id
            WHERE typed.id = listing.id
            ORDER BY art_type.id
        ) AS types,
        listing.ordering
    FROM {schema}.index_listing AS listing JOIN cover_art_archive.image_type USING (mime_type)
    WHERE listing.{entity} = entity.id
) AS art ON TRUE
WHERE entity.id = coalesce(
    (SELECT id FROM musicbrainz.{entity} WHERE gid = %(gid)s),
    (SELECT new_id FROM musicbrainz.{redirect} WHERE gid = %(gid)s)
)
ORDER BY art.ordering, art.id

-- name: with_art
-- Entities that have images, after a given gid.
SELECT entity.gid::text
FROM musicbrainz.{entity} AS entity
WHERE entity.gid > %(after)s AND EXISTS (SELECT FROM {schema}.{table} AS art WHERE art.{entity} = entity.id)
ORDER BY entity.gid
LIMIT %(limit)s

-- name: merged
-- Gids of merged entities, each with the gid of its target, after a given one.
SELECT redirect.gid::text, entity.gid::text
FROM musicbrainz.{redirect} AS redirect JOIN musicbrainz.{entity} AS entity ON entity.id = redirect.new_id
WHERE redirect.gid > %(after)s
ORDER BY redirect.gid
LIMIT %(limit)s

-- name: counts
-- The numbers of rows of the two queries above without a limit.
SELECT
    (
        SELECT count(*)
        FROM musicbrainz.{entity} AS entity
        WHERE entity.gid > %(after)s AND EXISTS (SELECT FROM {schema}.{table} AS art WHERE art.{entity} = entity.id)
    ),
    (SELECT count(*) FROM musicbrainz.{redirect} AS redirect WHERE redirect.gid > %(after)s)

-- name: homes
-- The entity of each image.
SELECT art.id, entity.gid::text
FROM {schema}.{table} AS art JOIN musicbrainz.{entity} AS entity ON entity.id = art.{entity}
WHERE art.id = ANY(%(images)s)
