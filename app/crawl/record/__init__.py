"""The record of each crawl in the store: what the crawl is, and what became of each of its URLs."""
