"""Answers to a failure: policies decide, one place carries the decision out."""
