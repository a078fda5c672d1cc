"""Redis: clients, Lua scripts and leases."""
