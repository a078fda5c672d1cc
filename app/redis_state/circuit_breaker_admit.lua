-- Admits a job while the circuit breaker is closed. When a pause is over, admits one job of all workers as the probe.
-- KEYS: until, count, items, probe, others. ARGV: token, ms of the probe's lease, ms to wait for it, items of the job.
-- Returns the ms that the job has to wait, and 1 if it is the probe.
local until_key, count, items, probe, others = unpack(KEYS)
local open = redis.call('PTTL', until_key)
if open > 0 then
    return {open, 0}
end
if redis.call('EXISTS', count) == 0 then
    return {0, 0}
end
-- Failed items may not probe for a while: one broken item must not keep the circuit breaker open.
local reserved = redis.call('PTTL', others)
if reserved > 0 then
    for number = 4, #ARGV do
        if redis.call('SISMEMBER', items, ARGV[number]) == 1 then
            return {reserved, 0}
        end
    end
end
-- A call that is repeated after its reply was lost has the probe's token already.
if redis.call('SET', probe, ARGV[1], 'NX', 'PX', ARGV[2]) or redis.call('GET', probe) == ARGV[1] then
    return {0, 1}
end
return {math.max(1, math.min(redis.call('PTTL', probe), tonumber(ARGV[3]))), 0}
