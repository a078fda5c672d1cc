-- Close a crawl: it is no longer active, and the hashes of its texts are not needed. A crawl whose pages or lines of
-- the record wait again stays active. Another end may be published at once. Returns 1 if the crawl is closed.
-- KEYS: the crawl, admitted, retrying, backlog, record, active crawls. ARGV: the crawl's id, ttl (s).
redis.call('DEL', KEYS[1] .. ':ending')
local open = redis.call('HLEN', KEYS[2]) + redis.call('HLEN', KEYS[3]) + redis.call('LLEN', KEYS[4])
if open + redis.call('LLEN', KEYS[5]) > 0 then
    return 0
end
redis.call('SREM', KEYS[6], ARGV[1])
if redis.call('HGET', KEYS[1], 'state') == 'paused' then
    redis.call('HSET', KEYS[1], 'state', 'running')
end
redis.call('DEL', KEYS[1] .. ':texts')
renew(KEYS[1], ARGV[2])
return 1
