"""A stand-in for MusicBrainz: its tables, its triggers, and a relay that brings their messages to a broker."""
