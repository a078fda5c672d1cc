-- Add a line to a crawl's record. Returns 1 if the caller is to write a segment of it.
-- KEYS: the crawl, its record. ARGV: the line, name of the caller.
return push_lines(KEYS[1], KEYS[2], {ARGV[1]}, ARGV[2])
