"""Each site: its settings and schedule as one object in the store, its status, and its sweeps."""
