"""One searcher: the packs that it holds on disk, what it answers from them, and what it tells of itself."""
