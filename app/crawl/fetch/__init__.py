"""Requests within the rules of a site: robots.txt, the limits of its host, and its HTTP clients."""
