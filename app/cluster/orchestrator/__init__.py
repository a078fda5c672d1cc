"""The orchestrator: what it knows, asks the store and answers; which pack goes where is said by `placing`."""
