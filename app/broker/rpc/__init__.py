"""Requests and replies over RabbitMQ."""
