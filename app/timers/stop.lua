-- Delete a timer if it has this callback.
-- KEYS: deadlines, timer of the domain. ARGV: domain, queue and message of the callback.
local callback = redis.call('HMGET', KEYS[2], 'queue', 'message')
if callback[1] ~= ARGV[2] or callback[2] ~= ARGV[3] then
    return 0
end
redis.call('DEL', KEYS[2])
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
