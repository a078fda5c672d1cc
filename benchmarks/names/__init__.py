"""How often the first hit for a name is its definition: names from sites' own indexes, contestants, measures, tables."""
