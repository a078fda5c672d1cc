"""The search cluster: protocol, client, orchestrator, placement and searchers."""
