"""Search one pack: parse a query, rank pages, cut snippets, suggest and respell. `PackSearcher` is the entry."""
