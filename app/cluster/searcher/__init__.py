"""One searcher: packs on its disk, replies to queries, reports to the orchestrator."""
