"""`make demo-caa`: MusicBrainz's art changes in SQL, and the archive follows, failures included; all on stand-ins."""
