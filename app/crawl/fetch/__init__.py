"""Requests as a site wants them: robots.txt, headers, proxy and certificates."""
