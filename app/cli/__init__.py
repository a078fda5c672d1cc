"""The perennial command."""
