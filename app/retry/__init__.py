"""Answers to a failure: policies decide, one place carries the decision out, dead sets can be worked."""
