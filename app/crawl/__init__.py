"""From a URL to a page: resolve, obey, fetch, extract, remember."""
