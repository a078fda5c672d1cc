"""Local HTTP servers for tests: a small web site that answers as it is told, also badly."""
