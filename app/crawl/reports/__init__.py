"""What operators and visitors read of crawls: totals by reason, broken links, explanations, all URLs."""
