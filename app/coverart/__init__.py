"""Cover art: the jobs of an indexer for the Cover Art Archive, and for its sister the Event Art Archive."""
