-- Reserve the next slot of a host, or take the slot reserved before. Returns seconds to wait; 0 is "go now".
-- KEYS: the host's gate, the host's reservations. ARGV: who asks, seconds between two requests.
-- gate.last is when the last request was let through, gate.tail is the last slot given away, gate.late the last one
-- given to somebody who came when the host was busy though its own slot had passed.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local delay = tonumber(ARGV[2])
local gate = redis.call('HMGET', KEYS[1], 'last', 'tail', 'late')
local free = (tonumber(gate[1]) or (now - delay)) + delay
local slot = tonumber(redis.call('HGET', KEYS[2], ARGV[1]))
if not slot then
    slot = math.max(now, (tonumber(gate[2]) or (now - delay)) + delay)
    redis.call('HSET', KEYS[1], 'tail', string.format('%.6f', slot))
end
if free > now and free - slot > 2 * delay then
    -- All who missed their slots would otherwise come back for the same next one, time and again.
    slot = math.max(free, (tonumber(gate[3]) or 0) + delay)
    redis.call('HSET', KEYS[1], 'late', string.format('%.6f', slot))
end
local wait = math.max(slot, free) - now
if wait <= 0 then
    redis.call('HSET', KEYS[1], 'last', string.format('%.6f', now))
    redis.call('HDEL', KEYS[2], ARGV[1])
    wait = 0
else
    redis.call('HSET', KEYS[2], ARGV[1], string.format('%.6f', slot))
end
redis.call('EXPIRE', KEYS[1], 86400)
redis.call('EXPIRE', KEYS[2], 86400)
return string.format('%.6f', wait)
