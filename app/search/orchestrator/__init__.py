"""The orchestrator: what it knows, asks the store and answers. Which pack goes where is said by app/search/placing."""
