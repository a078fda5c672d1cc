-- The column of the view of images that only releases have: whether the image is the first back.
art.id IS NOT DISTINCT FROM (
    SELECT back.id FROM {schema}.{table} AS back JOIN {schema}.{types_table} AS typed USING (id)
    WHERE back.{entity} = art.{entity} AND typed.type_id = 2 ORDER BY back.ordering, back.id LIMIT 1
) AS is_back,
