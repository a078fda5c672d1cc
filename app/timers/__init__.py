"""Debounce timers in Redis, their Lua beside them."""
