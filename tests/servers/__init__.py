"""Local servers for tests, with answers and failures that a test chooses."""
