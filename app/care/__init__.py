"""Care for the broker: compare it with the code, move a queue to other arguments, prove that nothing gets lost."""
