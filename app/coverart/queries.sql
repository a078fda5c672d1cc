-- Reads of MusicBrainz's database. Each query begins with a line with its name; a project fills in the braces.

-- name: entities
-- For each gid one row for each image in order, or one row without an image; none for an unknown gid. The gid of a merged
-- entity returns its target. The view says which image is the front or the back; its array of types has no order, so they
-- are read anew, by number. Both arrays are the merges into the entity: gids, and seconds since. The columns `created` and
-- `last_updated` may be NULL. OFFSET keeps the planner from joining with all entities.
SELECT
    wanted.gid::text,
    entity.gid::text,
    extract(EPOCH FROM entity.changed)::double precision,
    entity.merged,
    art.id,
    art.suffix,
    art.comment,
    art.edit,
    art.approved,
    art.is_front,
    art.is_back,
    art.types
FROM unnest(%(gids)s::uuid[]) AS wanted (gid)
CROSS JOIN LATERAL (
    SELECT
        found.id,
        found.gid,
        coalesce({changed}, to_timestamp(0)) AS changed,
        ARRAY(
            SELECT (gid::text, coalesce(extract(EPOCH FROM clock_timestamp() - created), 'infinity')::double precision)
            FROM musicbrainz.{redirect} WHERE new_id = found.id ORDER BY gid
        ) AS merged
    FROM musicbrainz.{entity} AS found
    WHERE found.id = coalesce(
        (SELECT id FROM musicbrainz.{entity} WHERE gid = wanted.gid),
        (SELECT new_id FROM musicbrainz.{redirect} WHERE gid = wanted.gid)
    )
    OFFSET 0
) AS entity
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
ORDER BY wanted.gid, art.ordering, art.id

-- name: with_art
-- Entities that have images, after a given gid.
SELECT entity.gid::text
FROM musicbrainz.{entity} AS entity
WHERE entity.gid > %(after)s AND EXISTS (SELECT FROM {schema}.{table} AS art WHERE art.{entity} = entity.id)
ORDER BY entity.gid
LIMIT %(limit)s

-- name: merged
-- Gids of merged entities, after a given one.
SELECT redirect.gid::text
FROM musicbrainz.{redirect} AS redirect
WHERE redirect.gid > %(after)s
ORDER BY redirect.gid
LIMIT %(limit)s

-- name: deleted
-- Gids of entities that were deleted and not merged, after a given one.
SELECT deleted.gid::text
FROM musicbrainz.deleted_entity AS deleted
WHERE deleted.gid > %(after)s AND deleted.data ->> 'entity_type' = %(entity)s
    AND NOT EXISTS (SELECT FROM musicbrainz.{redirect} AS redirect WHERE redirect.gid = deleted.gid)
    AND NOT EXISTS (SELECT FROM musicbrainz.{entity} AS entity WHERE entity.gid = deleted.gid)
ORDER BY deleted.gid
LIMIT %(limit)s

-- name: gids_of_images
-- The entity of each image.
SELECT art.id, entity.gid::text
FROM {schema}.{table} AS art JOIN musicbrainz.{entity} AS entity ON entity.id = art.{entity}
WHERE art.id = ANY(%(images)s)
