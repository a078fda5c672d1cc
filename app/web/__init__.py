"""The search page that people open."""
