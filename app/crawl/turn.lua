-- Ask for a message's turn at its page: one round trip tells whether it is done, what was fetched, or who fetches.
-- KEYS: done, dead, visit, lease. ARGV: message, token, lease (ms).
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 and redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 0 then
    return {'done'}
end
local visit = redis.call('GET', KEYS[3])
if visit then
    return {'visit', visit}
end
if redis.call('SET', KEYS[4], ARGV[2], 'NX', 'PX', ARGV[3]) then
    return {'fetch'}
end
return {'busy'}
