"""`make chaos`: crawls under faults, a ledger of each round, and the rules for it. Start at `__main__`."""
