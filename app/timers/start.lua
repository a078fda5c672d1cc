-- Start a domain's timer, or start it again. The stronger callback wins in any order of arrival.
-- KEYS: deadlines, timer of the domain, number of starts and resets of all timers. ARGV: domain, timeout (s), queue,
-- message, strength.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local stored = tonumber(redis.call('HGET', KEYS[2], 'strength') or -1)
if tonumber(ARGV[5]) >= stored then
    redis.call('HSET', KEYS[2], 'queue', ARGV[3], 'message', ARGV[4], 'strength', ARGV[5])
end
redis.call('HSET', KEYS[2], 'timeout', ARGV[2])
redis.call('HSET', KEYS[2], 'version', redis.call('INCR', KEYS[3]))
redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[2]), ARGV[1])
return 1
