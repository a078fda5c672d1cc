"""How often the first hit for a name is its definition, for names from the indexes of sites."""
