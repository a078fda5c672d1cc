"""The operators' JSON API: what the operations page can do, a program can."""
