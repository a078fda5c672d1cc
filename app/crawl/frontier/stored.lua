-- Note that lines of a crawl's record are in the store, unless another process noted it before: they wait no longer.
-- Returns the number of lines that wait.
-- KEYS: the crawl, its record. ARGV: offset of the segment, its lines, how many of them wait here, bytes of these.
redis.call('DEL', KEYS[1] .. ':writer')
if (redis.call('HGET', KEYS[1], 'stored') or '0') ~= ARGV[1] then
    return redis.call('LLEN', KEYS[2])
end
-- A full Redis takes the other writes only after one that needs no memory.
redis.call('LTRIM', KEYS[2], ARGV[3], -1)
redis.call('HSET', KEYS[1], 'stored', ARGV[1] + ARGV[2])
if redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('HDEL', KEYS[1], 'record_bytes')
else
    redis.call('HINCRBY', KEYS[1], 'record_bytes', -ARGV[4])
end
return redis.call('LLEN', KEYS[2])
