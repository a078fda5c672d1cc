"""What other Celery applications can use, too: it imports nothing of this one and no settings."""
