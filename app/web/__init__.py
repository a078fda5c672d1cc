"""The web process: the search page, the API, the metrics, and the pages of operations."""
