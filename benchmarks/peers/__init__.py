"""Other people's programs doing our work; each runs in a process of its own."""
