"""From stored pages to one SQLite database a domain."""
