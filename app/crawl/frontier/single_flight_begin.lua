-- Begin work on a page, in one round trip: 'done' for a completed message or a cancelled crawl, 'visit' with the shared
-- result, 'fetch' with the lease taken, 'busy' while another worker holds it, or 'foreign' with the crawl's domain if
-- that is another.
-- KEYS: pages of the crawl, result, lease, the crawl. ARGV: message, token, lease (ms), the page's domain or ''.
local crawl = redis.call('HMGET', KEYS[4], 'domain', 'state')
local domain = crawl[1]
if domain and ARGV[4] ~= '' and domain ~= ARGV[4] then
    return {'foreign', domain}
end
if redis.call('HGET', KEYS[1], ARGV[1]) == 'd' or crawl[2] == 'cancelled' then
    return {'done'}
end
local result = redis.call('GET', KEYS[2])
if result then
    return {'visit', result}
end
-- A call that is repeated after its reply was lost has the lease already.
if redis.call('SET', KEYS[3], ARGV[2], 'NX', 'PX', ARGV[3]) or redis.call('GET', KEYS[3]) == ARGV[2] then
    return {'fetch'}
end
return {'busy'}
