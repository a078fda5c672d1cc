"""What an operator does: a function for each act, called by commands, pages and the HTTP API."""
