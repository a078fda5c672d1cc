-- What else queues events for releases that have art: the names of their artists.

CREATE FUNCTION cover_art_archive.artist_renamed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cover_art_archive.queue_index(release.id)
    FROM musicbrainz.artist_credit_name AS credited
    JOIN musicbrainz.release USING (artist_credit)
    WHERE credited.artist = NEW.id AND cover_art_archive.has_art(release.id)
    ORDER BY release.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER artist_renamed AFTER UPDATE ON musicbrainz.artist
FOR EACH ROW WHEN (OLD.name <> NEW.name OR OLD.sort_name <> NEW.sort_name)
EXECUTE FUNCTION cover_art_archive.artist_renamed();
