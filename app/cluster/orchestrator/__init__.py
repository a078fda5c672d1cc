"""The orchestrator: its state, its scans of the store and its replies."""
