"""Private RabbitMQ and Redis for one machine: start, stop, status."""
