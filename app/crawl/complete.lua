-- Note one message as completed, whether its publication was noted before or not.
-- KEYS: open, done, dead, members of the crawl, the domain's hash, the crawl, the domain's crawls.
-- ARGV: ttl (s), message, 1 if dead, page id or ''.
redis.call('SREM', KEYS[1], ARGV[2])
redis.call('SADD', KEYS[2], ARGV[2])
if ARGV[3] == '1' then
    redis.call('SADD', KEYS[3], ARGV[2])
    redis.call('EXPIRE', KEYS[3], ARGV[1])
else
    redis.call('SREM', KEYS[3], ARGV[2])
end
if ARGV[4] ~= '' then
    redis.call('SADD', KEYS[4], ARGV[4])
    redis.call('EXPIRE', KEYS[4], ARGV[1])
end
redis.call('EXPIRE', KEYS[2], ARGV[1])
-- Prolonged with every message: a crawl may take longer than the ttl.
redis.call('EXPIRE', KEYS[6], ARGV[1])
redis.call('EXPIRE', KEYS[7], ARGV[1])
redis.call('HSET', KEYS[5], 'last_finished', redis.call('TIME')[1])
return redis.call('SCARD', KEYS[1])
