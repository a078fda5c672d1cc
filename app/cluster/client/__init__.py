"""Search clients: send a request to the searchers of its domains, and merge their replies."""
