"""The wire: connections, naming, publishing, plain messages as tasks."""
