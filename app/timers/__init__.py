"""Debounce timers of domains, kept in Redis."""
