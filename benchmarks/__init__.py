"""Ratios against comparable programs, side by side in one run: `make bench`."""
