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
    if listed == 0 then
        local left = redis.call('TTL', crawl)
        redis.call('EXPIRE', counted, left > 0 and left or 86400)
    end
    return true
end
