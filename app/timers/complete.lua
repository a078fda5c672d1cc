-- Complete claims, each unless its timer was started or reset since: delete the timer, or put it off by some seconds.
-- Returns 1 for each that was, else 0; a timer that is deleted already counts as deleted by a former call.
-- KEYS: deadlines, then the timer of each domain. ARGV: of each, its domain, version at the claim, seconds or '' to
-- delete.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local completed = {}
for number = 1, #KEYS - 1 do
    local timer = KEYS[number + 1]
    local domain, claimed, seconds = ARGV[3 * number - 2], ARGV[3 * number - 1], ARGV[3 * number]
    local version = redis.call('HGET', timer, 'version')
    if version ~= claimed then
        completed[number] = not version and seconds == '' and 1 or 0
    elseif seconds == '' then
        redis.call('DEL', timer)
        redis.call('ZREM', KEYS[1], domain)
        completed[number] = 1
    else
        redis.call('ZADD', KEYS[1], string.format('%.6f', now + seconds), domain)
        completed[number] = 1
    end
end
return completed
