"""The operations page: what goes on, what failed, and forms to act on it."""
