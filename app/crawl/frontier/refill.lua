-- Admit pages of all active crawls that have room in their admission windows: a page that failed left room, a host's
-- hold has ended, or a crawl was resumed. Returns a row for each crawl that needs something: its id, its domain,
-- 1 if nothing is left of it and its end is not published, seconds since its last progress, seconds until the next
-- request to its host, pages that share a message, and items.
-- Pages of an earlier call are returned again until their publication is noted.
-- No key of an active crawl expires, also of one that is paused for long.
-- KEYS: active crawls. ARGV: prefix of crawls' keys, prefix of hosts' keys, prefix of domains' keys, pages that all
-- crawls may have admitted, seconds without progress after which a crawl is returned, ttl (s).
local ttl = tonumber(ARGV[6])
local now = seconds()
local rows = {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
    local crawl = ARGV[1] .. id
    local fields = redis.call('HMGET', crawl, 'domain', 'last', 'delay', 'state', 'id')
    local domain, last, delay = fields[1], tonumber(fields[2]), tonumber(fields[3] or 0)
    local admitted, retrying = crawl .. ':admitted', crawl .. ':retrying'
    -- Rarely: each renewal is written to Redis' file, too.
    if redis.call('TTL', crawl) < ttl * 0.99 then
        renew(crawl, ttl)
        for _, key in ipairs(domain and {':latest', ':crawls'} or {}) do
            redis.call('EXPIRE', ARGV[3] .. domain .. key, ttl)
        end
    end
    if not domain then
        redis.call('SREM', KEYS[1], id)
    else
        local refilled = crawl .. ':refilled'
        local items, batch = open_items(admitted, table.concat(redis.call('SMEMBERS', refilled))), 1
        local host = ARGV[2] .. domain
        if redis.call('PTTL', host .. ':hold') <= 0 then
            local new
            new, batch = admit(crawl, crawl .. ':pages', admitted, crawl .. ':backlog', KEYS[1], tonumber(ARGV[4]))
            for _, item in ipairs(new) do
                items[#items + 1] = item
                redis.call('SADD', refilled, string.sub(item, 1, NAME))
            end
        end
        if fields[4] == 'cancelled' then
            redis.call('DEL', crawl .. ':backlog')
        end
        local open = redis.call('HLEN', admitted) + redis.call('HLEN', retrying)
        local left = open + redis.call('LLEN', crawl .. ':backlog')
        local ended = left == 0 and redis.call('EXISTS', crawl .. ':ending') == 0
        local idle = last and now - last or 0
        if #items > 0 or ended or (open > 0 and idle > tonumber(ARGV[5])) then
            local wait = string.format('%.3f', rest(host, delay, now))
            rows[#rows + 1] = {fields[5] or id, domain, ended and 1 or 0, string.format('%.3f', idle), wait, batch, unpack(items)}
        end
    end
end
return rows
