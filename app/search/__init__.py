"""From a person's words to ranked pages of a pack."""
