-- What else publishes for releases: the names of their artists.

-- One message for each image, not for each release: the real producer joins with the images, and repeats itself.
CREATE FUNCTION cover_art_archive.artist_renamed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM amqp.publish(1, 'cover-art-archive', 'index', changed.gid::text)
    FROM (
        SELECT release.gid
        FROM musicbrainz.artist_credit_name AS credited
        JOIN musicbrainz.release USING (artist_credit)
        JOIN cover_art_archive.cover_art AS art ON art.release = release.id
        WHERE credited.artist = NEW.id
        ORDER BY release.id, art.id
    ) AS changed;
    RETURN NULL;
END
$$;

CREATE TRIGGER artist_renamed AFTER UPDATE ON musicbrainz.artist
FOR EACH ROW WHEN (OLD.name <> NEW.name OR OLD.sort_name <> NEW.sort_name)
EXECUTE FUNCTION cover_art_archive.artist_renamed();
