-- End a fetch if its lease is still held: release it, and share the result unless ARGV[2] is '' (it failed). Without
-- the lease, another worker may have shared its own, and both messages of the page may be completed. So may they be
-- when this call is repeated after its reply was lost.
-- KEYS: result, lease. ARGV: token, result or '', ttl (s).
if redis.call('GET', KEYS[2]) == ARGV[1] then
    if ARGV[2] ~= '' then
        redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
    end
    redis.call('DEL', KEYS[2])
end
return 1
