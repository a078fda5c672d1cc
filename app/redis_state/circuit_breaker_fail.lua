-- Counts a failed request about an item, and opens the circuit breaker when enough items failed in a row.
-- KEYS: until, count, items, trial, others.
-- ARGV: item, threshold, ms of the first and the longest pause, ms of memory, ms that the service asks for, reason.
-- Returns the ms that it is open, 0 if it is closed, and 1 if this failure opened it.
local until_key, count, items, trial, others = unpack(KEYS)
local item, reason = ARGV[1], ARGV[7]
local threshold, first, longest = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local memory, asked = tonumber(ARGV[5]), tonumber(ARGV[6])

local function stay_open(pause)
    redis.call('SET', until_key, reason, 'PX', string.format('%d', pause))
    redis.call('SET', others, 1, 'PX', string.format('%d', pause + first))
    redis.call('PEXPIRE', count, string.format('%d', pause + memory))
    redis.call('PEXPIRE', items, string.format('%d', pause + memory))
end

local open = redis.call('PTTL', until_key)
if open > 0 then
    if asked > open then
        stay_open(asked)
    end
    return {math.max(open, asked), 0}
end
redis.call('SADD', items, item)
redis.call('PEXPIRE', items, string.format('%d', memory))
local on_trial = redis.call('EXISTS', count) == 1
if not on_trial and redis.call('SCARD', items) < threshold then
    return {0, 0}
end
local pauses = redis.call('INCR', count)
local pause = math.max(math.min(first * 2 ^ math.min(pauses - 1, 20), longest), asked)
stay_open(pause)
redis.call('DEL', trial)
return {pause, 1}
