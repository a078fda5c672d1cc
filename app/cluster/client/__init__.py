"""Search clients: a request goes to the searchers that have its domains, and their replies are merged."""
