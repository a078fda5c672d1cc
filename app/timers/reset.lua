-- Set a domain's timer back to its stored timeout and keep its callback; without a timer, start one.
-- KEYS: deadlines, timer of the domain, number of starts and resets of all timers. ARGV: domain, then for a new timer:
-- timeout (s), queue, message, strength.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local timeout = redis.call('HGET', KEYS[2], 'timeout')
if not timeout then
    timeout = ARGV[2]
    redis.call('HSET', KEYS[2], 'queue', ARGV[3], 'message', ARGV[4], 'strength', ARGV[5], 'timeout', timeout)
end
redis.call('HSET', KEYS[2], 'version', redis.call('INCR', KEYS[3]))
redis.call('ZADD', KEYS[1], string.format('%.6f', now + timeout), ARGV[1])
return 1
