-- End a run that did not complete its message: the host is free for the next request. A repeated call changes nothing.
-- With ARGV[2] = 1 the message failed and will be retried: it leaves the admission window meanwhile.
-- Its failures are counted: 'number time error' by name.
-- KEYS: pages of the crawl, admitted, retrying, requests in flight of the host, failures.
-- ARGV: message's name, 1 if it failed, the error, ttl (s).
end_request(KEYS[4], ARGV[1])
local entry = ARGV[2] == '1' and redis.call('HGET', KEYS[2], ARGV[1])
if entry then
    redis.call('HDEL', KEYS[2], ARGV[1])
    redis.call('HSET', KEYS[3], ARGV[1], entry)
    local number = tonumber(string.match(redis.call('HGET', KEYS[5], ARGV[1]) or '', '^%d+') or 0) + 1
    redis.call('HSET', KEYS[5], ARGV[1], number .. ' ' .. redis.call('TIME')[1] .. ' ' .. ARGV[3])
    redis.call('EXPIRE', KEYS[5], ARGV[4])
end
return 1
