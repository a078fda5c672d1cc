"""The broker topology of this application: declare it, compare it with a running broker, migrate a queue."""
