-- Hide duplicates: pages whose `canonical`, followed from row to row, ends at a row that names no further one. Pages that
-- name each other in a ring stay visible, or a search would find none of them.
WITH RECURSIVE duplicates (key) AS (
    SELECT page.key
    FROM pages AS page JOIN pages AS target ON target.key = page.canonical
    WHERE page.canonical <> '' AND page.canonical <> page.key
        AND NOT EXISTS (SELECT 1 FROM pages AS further WHERE further.key = target.canonical AND further.key <> target.key)
    UNION
    SELECT page.key
    FROM duplicates JOIN pages AS page ON page.canonical = duplicates.key
    WHERE page.canonical <> '' AND page.canonical <> page.key
)
UPDATE pages SET hidden = NOT hidden WHERE hidden <> (key IN (SELECT key FROM duplicates));
