-- Note the `index` and `crawl` messages of pages as open, unless they were completed before this note, or the crawl was
-- cancelled: then no run completes them.
-- KEYS: the crawl, its pages, admitted, active crawls. ARGV: ttl (s), the crawl's id, then a name and an entry for
-- each.
local cancelled = redis.call('HGET', KEYS[1], 'state') == 'cancelled'
for at = 3, #ARGV - 1, 2 do
    local name, entry = ARGV[at], ARGV[at + 1]
    if redis.call('HSETNX', KEYS[2], name, 'l') == 1 then
        redis.call('HINCRBY', KEYS[1], 'seen', 1)
    end
    for _, kind in ipairs({'i', 'c'}) do
        if redis.call('HSETNX', KEYS[2], kind .. name, 'o') == 1 and not cancelled then
            redis.call('HSET', KEYS[3], kind .. name, entry)
        end
    end
end
for index = 1, 3 do
    redis.call('EXPIRE', KEYS[index], ARGV[1])
end
if redis.call('HEXISTS', KEYS[1], 'domain') == 1 then
    redis.call('SADD', KEYS[4], ARGV[2])
end
return 1
