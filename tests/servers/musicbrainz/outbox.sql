-- amqp.publish() as a producer's triggers call it: what it is given is sent if, and only if, the transaction commits.

CREATE SCHEMA amqp;

CREATE TABLE amqp.outbox (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    exchange text NOT NULL,
    routing_key text NOT NULL,
    message text NOT NULL,
    properties jsonb NOT NULL
);

-- There is one broker here, so its number says nothing. A message that is NULL goes out with an empty body, as the real
-- extension sends it.
CREATE FUNCTION amqp.publish(
    broker_id integer,
    exchange varchar,
    routing_key varchar,
    message varchar,
    delivery_mode integer DEFAULT NULL,
    content_type varchar DEFAULT NULL,
    reply_to varchar DEFAULT NULL,
    correlation_id varchar DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO amqp.outbox (exchange, routing_key, message, properties)
    VALUES (
        publish.exchange,
        publish.routing_key,
        coalesce(publish.message, ''),
        jsonb_strip_nulls(jsonb_build_object(
            'delivery_mode', publish.delivery_mode,
            'content_type', publish.content_type,
            'reply_to', publish.reply_to,
            'correlation_id', publish.correlation_id
        ))
    );
    PERFORM pg_notify('amqp_outbox', '');
    RETURN true;
END
$$;
