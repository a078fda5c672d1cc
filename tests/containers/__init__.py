"""`make test-containers`: an unchanged docker-compose.yml, started and used. Start at `__main__`."""
