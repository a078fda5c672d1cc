-- Begin work on a page, in one round trip: 'done' for a completed message, 'visit' with the shared result, 'fetch'
-- with the lease taken, 'busy' while another worker holds it, or 'foreign' with the crawl's domain if that is another.
-- KEYS: done, dead, result, lease, the crawl. ARGV: message, token, lease (ms), the page's domain or ''.
local domain = redis.call('HGET', KEYS[5], 'domain')
if domain and ARGV[4] ~= '' and domain ~= ARGV[4] then
    return {'foreign', domain}
end
if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 and redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 0 then
    return {'done'}
end
local result = redis.call('GET', KEYS[3])
if result then
    return {'visit', result}
end
if redis.call('SET', KEYS[4], ARGV[2], 'NX', 'PX', ARGV[3]) then
    return {'fetch'}
end
return {'busy'}
