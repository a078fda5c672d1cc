"""From a URL to a stored page: frontier, politeness, fetch, extract, classify."""
