-- Complete a claim, unless the timer was started or reset since: delete the timer, or put it off by ARGV[3] seconds.
-- Returns 1 if it was; a timer that is deleted already counts as deleted by a former call.
-- KEYS: deadlines, timer of the domain. ARGV: domain, version at the claim, seconds or '' to delete.
local version = redis.call('HGET', KEYS[2], 'version')
if version ~= ARGV[2] then
    return not version and ARGV[3] == '' and 1 or 0
end
if ARGV[3] == '' then
    redis.call('DEL', KEYS[2])
    redis.call('ZREM', KEYS[1], ARGV[1])
else
    local clock = redis.call('TIME')
    redis.call('ZADD', KEYS[1], string.format('%.6f', clock[1] + clock[2] / 1000000 + ARGV[3]), ARGV[1])
end
return 1
