-- Note pages as seen, and their messages as open unless they were completed before this note.
-- KEYS: seen, open, done. ARGV: ttl (s), then fingerprints; each stands for an `index` and a `crawl` message.
for i = 2, #ARGV do
    redis.call('SADD', KEYS[1], ARGV[i])
    for _, kind in ipairs({'i', 'c'}) do
        if redis.call('SISMEMBER', KEYS[3], kind .. ARGV[i]) == 0 then
            redis.call('SADD', KEYS[2], kind .. ARGV[i])
        end
    end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[1])
return redis.call('SCARD', KEYS[1])
