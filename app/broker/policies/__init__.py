"""Retry policies: one contract and its implementations."""
