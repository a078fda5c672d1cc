-- Complete a message of a crawl, add its links to the backlog, and admit the next pages, in one round trip. A completed
-- message that is completed again admits nothing more: the pages that it admitted are returned again while they are open
-- and their publication is not noted.
-- Returns: 1 if the crawl has nothing left, 1 if the caller is to write a segment of the record, links up to the first one
-- that the limit leaves out, seconds until the next request to the host, and the items of the pages admitted now.
-- KEYS: the crawl, its pages, admitted, retrying, backlog, handover, record, the host, its requests in flight, its hold,
-- active crawls.
-- ARGV: message's name, 'd' (done) or 'x' (dead), 1 if the page belongs in the crawl's pack, line of the record or '',
-- delay of the host (s), window or '' for a host that is not the crawl's own, pages that all crawls may have admitted, ttl (s) or 0 to leave it, pages that the
-- crawl may have, the crawl's id, names of messages whose handover is published with commas between them, URLs of a
-- pattern, URLs of a path with several parameters, identical texts in a row, hash of the page's text or '', length of its
-- canonical key, number of links, then a name and an entry for each link, then a reason, a name and an entry for each excluded link.
-- Sitemaps of a crawl.
local SITEMAPS = 1000
local crawl, pages, admitted = KEYS[1], KEYS[2], KEYS[3]
local name, state, delay = ARGV[1], ARGV[2], tonumber(ARGV[5])
local former = redis.call('HGET', pages, name)
local is_repeated_call = former == state
if not is_repeated_call then
    redis.call('HSET', pages, name, state)
    redis.call('HINCRBY', crawl, state == 'd' and 'done' or 'dead', 1)
    if former == 'x' then
        redis.call('HINCRBY', crawl, 'dead', -1)
    end
    if ARGV[3] == '1' then
        redis.call('HINCRBY', crawl, 'indexed', 1)
    end
end
if #name > NAME then
    -- One of the two messages of a page. When both are completed, no message asks for its fetch result any more.
    local page, twin = string.sub(name, 2), string.sub(name, 1, 1) == 'i' and 'c' or 'i'
    local other = redis.call('HGET', pages, twin .. page)
    if other == 'd' or other == 'x' then
        redis.call('DEL', crawl .. ':visit:' .. page)
    end
end
redis.call('HDEL', crawl .. ':failures', name)
redis.call('HDEL', crawl .. ':former', name)
local budgets, texts = crawl .. ':budgets', crawl .. ':texts'
if ARGV[15] ~= '' and not is_repeated_call then
    local entry = redis.call('HGET', admitted, name) or redis.call('HGET', KEYS[4], name) or ''
    count_text(budgets, texts, ARGV[15], tonumber(ARGV[16]), charges_of(entry))
end
if redis.call('HDEL', admitted, name) == 0 then
    redis.call('HDEL', KEYS[4], name)
end
local now = seconds()
-- A page without a request, or whose request ended before, does not delay the next request.
if end_request(KEYS[9], name) and delay > 0 then
    redis.call('HSET', KEYS[8], 'last', string.format('%.6f', now))
end
local limits = {pattern = tonumber(ARGV[12]), variants = tonumber(ARGV[13]), identical = tonumber(ARGV[14])}
-- Pages of a cancelled crawl do not wait: nothing would admit them.
local links = redis.call('HGET', crawl, 'state') ~= 'cancelled' and tonumber(ARGV[17]) or 0
local first = 18 + 2 * tonumber(ARGV[17])
local seen = links > 0 and tonumber(redis.call('HGET', crawl, 'seen') or 0)
-- Links that a sweep must find by this page: those to pages that are new, and those that show what is left out.
local needed = {}
for at = 18, 17 + 2 * links, 2 do
    if seen < tonumber(ARGV[9]) then
        if redis.call('HEXISTS', pages, ARGV[at]) == 0 then
            local charges = charges_of(ARGV[at + 1])
            local reason = spent(budgets, charges, limits)
            local is_sitemap = string.find(ARGV[at + 1], '"sitemap"', 1, true)
            if is_sitemap and tonumber(redis.call('HGET', crawl, 'sitemaps') or 0) >= SITEMAPS then
                reason = 'max-sitemaps'
            end
            if reason then
                exclude(crawl, pages, reason, ARGV[at], ARGV[at + 1])
                if note_left_out(crawl, reason, charges) then
                    needed[#needed + 1] = ARGV[at + 1]
                end
            else
                redis.call('HSET', pages, ARGV[at], 'w')
                redis.call('RPUSH', KEYS[5], ARGV[at] .. ARGV[at + 1])
                if is_sitemap then
                    redis.call('HINCRBY', crawl, 'sitemaps', 1)
                end
                note_probe(crawl, ARGV[at], ARGV[at + 1])
                charge(budgets, charges)
                if is_page(ARGV[at + 1]) then
                    seen = seen + 1
                    needed[#needed + 1] = ARGV[at + 1]
                end
            end
        end
    elseif exclude(crawl, pages, 'max-pages', ARGV[at], ARGV[at + 1]) then
        if note_left_out(crawl, 'max-pages', '') then
            needed[#needed + 1] = ARGV[at + 1]
        end
        links = math.min(links, (at - 18) / 2)
    end
end
for at = first, #ARGV - 2, 3 do
    if exclude(crawl, pages, ARGV[at], ARGV[at + 1], ARGV[at + 2]) and ARGV[at] == 'max-depth' then
        redis.call('HSET', crawl, 'cut', 1)
    end
end
if ARGV[4] ~= '' and not is_repeated_call then
    push_line(crawl, KEYS[7], with_links(ARGV[4], needed))
end
local write = must_write(crawl, KEYS[7], name)
local fields = {'last', string.format('%.3f', now), 'rounds', 0}
if state == 'd' and ARGV[6] ~= '' then
    fields = {'last', fields[2], 'rounds', 0, 'window', ARGV[6], 'delay', ARGV[5]}
end
if seen then
    fields[#fields + 1] = 'seen'
    fields[#fields + 1] = seen
end
redis.call('HSET', crawl, unpack(fields))
for each in string.gmatch(ARGV[11], '[^,]+') do
    redis.call('HDEL', KEYS[6], each)
end
local items = {}
if is_repeated_call then
    items = open_items(admitted, redis.call('HGET', KEYS[6], name) or '')
elseif redis.call('PTTL', KEYS[10]) <= 0 then
    items = admit(crawl, pages, admitted, KEYS[5], KEYS[11], tonumber(ARGV[7]))
    local names = {}
    for index, item in ipairs(items) do
        names[index] = string.sub(item, 1, NAME)
    end
    if #items > 0 then
        redis.call('HSET', KEYS[6], name, table.concat(names))
    end
end
if tonumber(ARGV[8]) > 0 then
    for index = 1, 7 do
        redis.call('EXPIRE', KEYS[index], ARGV[8])
    end
    redis.call('EXPIRE', crawl .. ':former', ARGV[8])
    redis.call('EXPIRE', budgets, ARGV[8])
    redis.call('EXPIRE', texts, ARGV[8])
    redis.call('EXPIRE', crawl .. ':closed', ARGV[8])
end
local left = redis.call('HLEN', admitted) + redis.call('HLEN', KEYS[4]) + redis.call('LLEN', KEYS[5])
-- Also a crawl that has nothing left, until its end is recorded.
if left > 0 or redis.call('HEXISTS', crawl, 'domain') == 1 then
    redis.call('SADD', KEYS[11], ARGV[10])
end
return {left == 0 and 1 or 0, write, links, string.format('%.3f', rest(KEYS[8], delay, now)), unpack(items)}
