"""Placement: from packs and searchers to orders, without clock or I/O."""
