"""Requests as a site wants them: the rules of its robots.txt, and clients with its headers, proxy and certificates."""
