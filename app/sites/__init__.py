"""What is known of each site: its settings, its schedule and its blocked URLs, as one object in the store."""
