"""HTML to text and links: one contract, two parsers."""
