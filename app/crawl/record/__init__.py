"""The record of each crawl in the store: what became of each of its URLs."""
