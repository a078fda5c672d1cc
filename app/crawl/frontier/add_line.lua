-- Add a line to a crawl's record. Returns 1 if the caller is to write a segment of it.
-- KEYS: the crawl, its record. ARGV: the line, name of the caller, ttl (s).
local write = push_lines(KEYS[1], KEYS[2], {ARGV[1]}, ARGV[2])
-- The crawl may have ended: then nothing else would let the record expire.
renew(KEYS[1], ARGV[3])
return write
