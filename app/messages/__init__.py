"""The messages of this application: envelopes, the consumer that makes tasks of them, events, and dead letters."""
