"""What a response means: documents, their text and links, sitemaps, and the result of a page."""
