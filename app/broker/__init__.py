"""Everything about RabbitMQ that other Celery applications can take: it imports nothing of this one and no settings."""
