-- Drops the triggers that publish messages, with their functions, and nothing else of the two archives.

DO $$
DECLARE
    dropped regprocedure;
BEGIN
    FOR dropped IN
        SELECT oid FROM pg_proc
        WHERE pronamespace IN ('cover_art_archive'::regnamespace, 'event_art_archive'::regnamespace)
        AND (prorettype = 'trigger'::regtype OR proname = 'publish_index')
    LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', dropped);
    END LOOP;
END
$$;
