"""Exchanges, queues and bindings: declare them, compare them with a broker's, migrate a queue."""
