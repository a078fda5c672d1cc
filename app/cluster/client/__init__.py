"""From a query to the searchers that have its packs, and from their answers to one."""
