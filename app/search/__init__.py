"""From a person's words to ranked pages of a pack, and the messages in which both travel."""
