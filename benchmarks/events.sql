-- Releases of {artists} artists, {releases} of each and numbered from 0, with {images} images each. No trigger sees them.
SET LOCAL session_replication_role = replica;
INSERT INTO musicbrainz.artist (id, name, sort_name)
SELECT number, 'Artist', 'Artist' FROM generate_series(1, {artists}) AS number;
INSERT INTO musicbrainz.artist_credit (id, name) SELECT id, name FROM musicbrainz.artist;
INSERT INTO musicbrainz.artist_credit_name (artist_credit, position, artist, name)
SELECT id, 0, id, name FROM musicbrainz.artist;
INSERT INTO musicbrainz.release (id, gid, name, artist_credit)
SELECT
    number,
    ('00000000-0000-4000-8000-' || lpad(to_hex(number), 12, '0'))::uuid,
    'Release ' || number,
    1 + number / {releases}
FROM generate_series(0, {artists} * {releases} - 1) AS number;
INSERT INTO musicbrainz.edit (id, close_time) SELECT id, now() FROM musicbrainz.release;
INSERT INTO cover_art_archive.cover_art (id, release, edit, ordering, mime_type)
SELECT release.id * {images} + number, release.id, release.id, number, 'image/jpeg'
FROM musicbrainz.release, generate_series(1, {images}) AS number;
INSERT INTO cover_art_archive.cover_art_type (id, type_id) SELECT id, ordering FROM cover_art_archive.cover_art;
