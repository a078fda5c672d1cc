-- End a fetch: share its result unless ARGV[2] is '' (it failed), and release the lease if it is still held.
-- KEYS: result, lease. ARGV: token, result or '', ttl (s).
if ARGV[2] ~= '' then
    redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
    redis.call('DEL', KEYS[2])
end
return 1
