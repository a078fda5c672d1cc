"""Events for other programs and for operators, and their delivery by webhook and by mail."""
