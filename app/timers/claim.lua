-- Claim the timers that are due: each is put off by the lease, so that it is due again if its claimer dies. A call that
-- is repeated returns the timers of the first one again, unless another claim came between.
-- KEYS: deadlines, the last claim. ARGV: prefix of the timers' keys, lease (s), limit, id of the call.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local last = redis.call('HMGET', KEYS[2], 'at', 'call', 'domains')
local set_back = (tonumber(last[1]) or now) - now
if set_back > 1 then
    -- The clock was set back. Without this, every timer would be late by the difference.
    for _, domain in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        redis.call('ZINCRBY', KEYS[1], string.format('%.6f', -set_back), domain)
    end
end
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now), 'LIMIT', 0, ARGV[3])
if last[2] == ARGV[4] then
    for domain in string.gmatch(last[3] or '', '%S+') do
        due[#due + 1] = domain
    end
end
redis.call('HSET', KEYS[2], 'at', string.format('%.6f', now), 'call', ARGV[4], 'domains', table.concat(due, ' '))
local claimed = {}
for _, domain in ipairs(due) do
    local timer = redis.call('HMGET', ARGV[1] .. domain, 'timeout', 'queue', 'message', 'version')
    if timer[1] then
        redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[2]), domain)
        claimed[#claimed + 1] = {domain, timer[1], timer[2], timer[3], timer[4]}
    else
        redis.call('ZREM', KEYS[1], domain)
    end
end
return claimed
