"""How well searches find the pages that people judged right: the judged set, contestants, measures and tables."""
