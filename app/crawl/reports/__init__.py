"""Reports of crawls: totals by reason, broken links, explanations, all URLs."""
