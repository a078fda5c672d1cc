-- End a turn: share the visit where there is one (ARGV[2] is not ''), and free the page if it is still ours.
-- KEYS: visit, lease. ARGV: token, visit or '', ttl (s).
if ARGV[2] ~= '' then
    redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
end
if redis.call('GET', KEYS[2]) == ARGV[1] then
    redis.call('DEL', KEYS[2])
end
return 1
