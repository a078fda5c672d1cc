-- Note that lines of a crawl's record are in the store, unless another process noted it before.
-- KEYS: the crawl, its record. ARGV: offset of the first line, number of lines.
if (redis.call('HGET', KEYS[1], 'stored') or '0') ~= ARGV[1] then
    return 0
end
redis.call('LTRIM', KEYS[2], ARGV[2], -1)
redis.call('HSET', KEYS[1], 'stored', ARGV[1] + ARGV[2])
return 1
