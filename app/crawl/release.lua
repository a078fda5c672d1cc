-- End a run that did not complete its message: the host is free for the next request.
-- With ARGV[2] = 1 the message failed and will be retried: it leaves the admission window meanwhile.
-- Its failures are counted: 'number time error' by name.
-- KEYS: pages of the crawl, admitted, retrying, requests in flight of the host, failures.
-- ARGV: message's name, 1 if it failed, the error, ttl (s).
redis.call('ZREM', KEYS[4], ARGV[1])
if ARGV[2] == '1' then
    local entry = redis.call('HGET', KEYS[2], ARGV[1])
    if entry then
        redis.call('HDEL', KEYS[2], ARGV[1])
        redis.call('HSET', KEYS[3], ARGV[1], entry)
    end
    local number = tonumber(string.match(redis.call('HGET', KEYS[5], ARGV[1]) or '', '^%d+') or 0) + 1
    redis.call('HSET', KEYS[5], ARGV[1], number .. ' ' .. redis.call('TIME')[1] .. ' ' .. ARGV[3])
    redis.call('EXPIRE', KEYS[5], ARGV[4])
end
return 1
