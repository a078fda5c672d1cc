-- What else queues events for releases that have art: their artists, their ASIN and their first date.

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

CREATE FUNCTION cover_art_archive.meta_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF cover_art_archive.has_art(NEW.id) THEN
        PERFORM cover_art_archive.queue_index(NEW.id);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER meta_changed AFTER UPDATE ON musicbrainz.release_meta
FOR EACH ROW WHEN (OLD.amazon_asin IS DISTINCT FROM NEW.amazon_asin)
EXECUTE FUNCTION cover_art_archive.meta_changed();

CREATE FUNCTION cover_art_archive.date_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF cover_art_archive.has_art(coalesce(NEW.release, OLD.release)) THEN
        PERFORM cover_art_archive.queue_index(coalesce(NEW.release, OLD.release));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER date_changed AFTER INSERT OR DELETE ON musicbrainz.release_first_release_date
FOR EACH ROW EXECUTE FUNCTION cover_art_archive.date_changed();
