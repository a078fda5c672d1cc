"""Comparable programs doing the same work, each in its own process."""
