"""The broker topology: declare it, compare it with a broker, migrate a queue."""
