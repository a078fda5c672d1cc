"""One searcher: the packs on its disk, its replies to queries and its reports to the orchestrator."""
