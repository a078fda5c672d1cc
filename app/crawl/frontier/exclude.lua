-- Functions of the scripts that note excluded URLs: found by a crawl, and never requested.

-- Number of URLs of one reason that are listed. The others are only counted.
local LISTED = 500

-- Note a URL with its reason, unless it is a page of the crawl. Return whether it is none.
-- Distinct URLs are counted by a HyperLogLog of each reason: 12 kB at most, however many URLs a trap has.
local function exclude(crawl, pages, reason, name, entry)
    if redis.call('HEXISTS', pages, name) == 1 then
        return false
    end
    local key = crawl .. ':excluded'
    local counted = key .. ':' .. reason
    redis.call('PFADD', counted, name)
    local listed = tonumber(redis.call('HGET', crawl, 'listed:' .. reason) or 0)
    if listed < LISTED and redis.call('HSETNX', key, name, reason .. entry) == 1 then
        redis.call('HINCRBY', crawl, 'listed:' .. reason, 1)
    end
    local left = redis.call('TTL', crawl)
    redis.call('EXPIRE', counted, left > 0 and left or 86400)
    redis.call('EXPIRE', key, left > 0 and left or 86400)
    return true
end

-- Renew the TTL of what is noted of a crawl's excluded URLs: most of a site's menu is noted once, at the beginning.
local function renew_excluded(crawl, ttl)
    redis.call('EXPIRE', crawl .. ':excluded', ttl)
    for _, field in ipairs(redis.call('HKEYS', crawl)) do
        local reason = string.match(field, '^listed:(.*)$')
        if reason then
            redis.call('EXPIRE', crawl .. ':excluded:' .. reason, ttl)
        end
    end
end
