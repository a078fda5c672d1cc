"""Messages of this application: envelopes, their consumer, events, and dead letters."""
