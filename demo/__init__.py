"""make demo: one full round on a real site, narrated."""
