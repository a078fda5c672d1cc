"""Checks that the broker, the store and the settings lose no message."""
