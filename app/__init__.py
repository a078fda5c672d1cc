"""Perennial: every delay and every failure lives in the broker."""
