-- Admits a job while some circuit breakers are closed. When a pause is over, admits one job of all workers as the
-- trial.
-- KEYS: until, count, items, trial, others of each circuit breaker.
-- ARGV: token, ms of a trial's lease, ms to wait for it, items of the job.
-- Returns for each circuit breaker, up to one that the job waits for: the ms that it has to wait, 1 if it is the trial,
-- and 1 if failures are remembered.

local function admit(until_key, count, items, trial, others)
    local open = redis.call('PTTL', until_key)
    if open > 0 then
        return {open, 0, 1}
    end
    if redis.call('EXISTS', count) == 0 then
        return {0, 0, redis.call('EXISTS', items)}
    end
    -- Failed items may not be the trial for a while: one broken item must not keep the circuit breaker open.
    local reserved = redis.call('PTTL', others)
    if reserved > 0 then
        for number = 4, #ARGV do
            if redis.call('SISMEMBER', items, ARGV[number]) == 1 then
                return {reserved, 0, 1}
            end
        end
    end
    -- A call that is repeated after its reply was lost has the trial's token already.
    if redis.call('SET', trial, ARGV[1], 'NX', 'PX', ARGV[2]) or redis.call('GET', trial) == ARGV[1] then
        return {0, 1, 1}
    end
    return {math.max(1, math.min(redis.call('PTTL', trial), tonumber(ARGV[3]))), 0, 1}
end

local admissions = {}
for first = 1, #KEYS, 5 do
    local admission = admit(unpack(KEYS, first, first + 4))
    table.insert(admissions, admission)
    if admission[1] > 0 then
        break
    end
end
return admissions
