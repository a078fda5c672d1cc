"""Events for programs and operators, and their delivery by webhook and mail."""
