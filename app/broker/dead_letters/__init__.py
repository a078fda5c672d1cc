"""Dead sets, and how they are worked: looked at, grouped, replayed, dropped, exported, restored."""
