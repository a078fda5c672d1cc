"""HTTP requests over one guarded urllib3 pool: address policy, deadline over the whole response, bounded body.

`fetcher.Fetcher` uses the pool directly, for the crawl. `api_client.ApiClient` puts a `requests` session on it, for
servers that the settings name.
"""
