-- Forgets the failures: the service answered. A pause that has begun meanwhile stays.
-- KEYS: until, count, items, trial, others.
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
end
