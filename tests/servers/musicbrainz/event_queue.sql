-- The queue of events that MusicBrainz's triggers write, and which an indexer empties: the names that it documents.

CREATE SCHEMA artwork_indexer;

CREATE TYPE artwork_indexer.indexable_entity_type AS ENUM ('event', 'release');
CREATE TYPE artwork_indexer.event_queue_action AS ENUM ('index', 'copy_image', 'delete_image', 'deindex', 'noop');
CREATE TYPE artwork_indexer.event_state AS ENUM ('queued', 'running', 'failed', 'completed');

CREATE TABLE artwork_indexer.event_queue (
    id bigserial PRIMARY KEY,
    state artwork_indexer.event_state NOT NULL DEFAULT 'queued',
    entity_type artwork_indexer.indexable_entity_type NOT NULL,
    action artwork_indexer.event_queue_action NOT NULL,
    message jsonb NOT NULL,
    depends_on bigint[],
    created timestamptz NOT NULL DEFAULT now(),
    attempts smallint NOT NULL DEFAULT 0,
    last_updated timestamptz NOT NULL DEFAULT now()
);

-- Equal events are one, until the first of them runs.
CREATE UNIQUE INDEX ON artwork_indexer.event_queue (entity_type, action, message) WHERE state = 'queued';
CREATE INDEX ON artwork_indexer.event_queue (state, created);

CREATE TABLE artwork_indexer.event_failure_reason (
    event bigint NOT NULL REFERENCES artwork_indexer.event_queue ON DELETE CASCADE,
    failure_reason text NOT NULL,
    created timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX ON artwork_indexer.event_failure_reason (event, created);

-- An update keeps the time that it sets itself, and otherwise gets the present one.
CREATE FUNCTION artwork_indexer.touch() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.last_updated IS NOT DISTINCT FROM OLD.last_updated THEN
        NEW.last_updated := now();
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER touch BEFORE UPDATE ON artwork_indexer.event_queue
FOR EACH ROW EXECUTE FUNCTION artwork_indexer.touch();

-- Not in MusicBrainz's schema: it wakes a reader that would otherwise poll.
CREATE FUNCTION artwork_indexer.notify_reader() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    NOTIFY artwork_indexer_event_queue;
    RETURN NULL;
END
$$;

CREATE TRIGGER notify_reader AFTER INSERT ON artwork_indexer.event_queue
FOR EACH STATEMENT EXECUTE FUNCTION artwork_indexer.notify_reader();

-- Queues an event and returns its id. An equal queued one only gets the further parents.
CREATE FUNCTION artwork_indexer.push(
    of_type artwork_indexer.indexable_entity_type,
    what artwork_indexer.event_queue_action,
    about jsonb,
    parents bigint[] DEFAULT NULL
) RETURNS bigint
LANGUAGE sql AS $$
    INSERT INTO artwork_indexer.event_queue AS waiting (entity_type, action, message, depends_on)
    VALUES (of_type, what, about, parents)
    ON CONFLICT (entity_type, action, message) WHERE state = 'queued'
    DO UPDATE SET depends_on = nullif(
        coalesce(waiting.depends_on, '{}') || coalesce(excluded.depends_on, '{}'), '{}'
    )
    RETURNING id
$$;
