"""HTTP requests over one guarded urllib3 pool: address policy, deadline over the whole response, bounded body.

`pool.guarded_pool` serves the crawl directly; `api.ApiClient` puts a `requests` session on the same pool for
servers that the settings name.
"""
