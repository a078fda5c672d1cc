"""Cover art: the jobs of an indexer for the Cover Art Archive and the Event Art Archive."""
