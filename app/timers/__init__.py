"""Debounce timers of domains, kept in Redis; those with a client's own callback also in the store."""
