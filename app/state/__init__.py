"""What is shared through Redis: the connection, scripts, leases."""
