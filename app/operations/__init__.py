"""What an operator does: one function for each act, called by commands, pages and the HTTP API alike."""
