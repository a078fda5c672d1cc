"""Which searcher is to have which pack: from what there is, to what is to be told. No clock, no I/O."""
