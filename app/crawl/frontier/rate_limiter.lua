-- Reserve the next request to a host, or return the reservation made before. Returns seconds to wait; 0 means now.
-- KEYS: the host's hash, the host's reservations, its requests in flight, its hold. ARGV: requester, seconds between a
-- response and the next request, requests that may be in flight, seconds after which one in flight counts as lost.
-- In the hash, `last` is the time of the last request, `tail` the last reservation, and `late` the last reservation
-- of a requester that had missed its own while the host was busy.
local hold = redis.call('PTTL', KEYS[4])
if hold > 0 then
    return string.format('%.3f', hold / 1000)
end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local delay = tonumber(ARGV[2])
local host = redis.call('HMGET', KEYS[1], 'last', 'tail', 'late')
if tonumber(host[1]) and tonumber(host[1]) > now then
    -- The clock was set back. The times of the former one would hold the host's requests for the difference.
    redis.call('DEL', KEYS[1], KEYS[2])
    host = {}
end
local free = (tonumber(host[1]) or (now - delay)) + delay
local reservation = tonumber(redis.call('HGET', KEYS[2], ARGV[1]))
if not reservation then
    reservation = math.max(now, (tonumber(host[2]) or (now - delay)) + delay)
    redis.call('HSET', KEYS[1], 'tail', string.format('%.6f', reservation))
end
if free > now and free - reservation > 2 * delay then
    -- Without this, all who missed their reservations would compete for the same next time, again and again.
    reservation = math.max(free, (tonumber(host[3]) or 0) + delay)
    redis.call('HSET', KEYS[1], 'late', string.format('%.6f', reservation))
end
local wait = math.max(reservation, free) - now
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
if wait <= 0 and redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[3]) and not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
    wait = math.max(delay, 0.25)
end
if wait <= 0 then
    redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[1])
    redis.call('EXPIRE', KEYS[3], ARGV[4])
    redis.call('HSET', KEYS[1], 'last', string.format('%.6f', now))
    redis.call('HDEL', KEYS[2], ARGV[1])
    wait = 0
else
    redis.call('HSET', KEYS[2], ARGV[1], string.format('%.6f', reservation))
end
redis.call('EXPIRE', KEYS[1], 86400)
redis.call('EXPIRE', KEYS[2], 86400)
return string.format('%.6f', wait)
