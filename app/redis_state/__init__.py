"""Redis: clients, Lua scripts, leases, circuit breakers, and whether Redis has lost its data."""
