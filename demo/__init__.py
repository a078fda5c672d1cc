"""`make demo`: crawl, pack and search a real site, with a retry and a dead letter on the way. Start at `__main__`."""
