-- Complete pages of a message, or another message of a crawl, add their links to the backlog, and admit the next pages,
-- in one round trip. A completed message that is completed again admits nothing more: the pages that it admitted are
-- returned again while they are open and their publication is not noted.
-- A caller leaves out links that it has cached as seen. If another crawl, or another Redis, has seen them, nothing is
-- done.
-- Returns: what tells this crawl and this Redis from former ones, then nothing more if the caller's is another one.
-- Else:
-- 1 if the crawl has a record and nothing left, 1 if the caller is to write a segment of the record, seconds until the
-- next request to the host, pages that share a message, for each page its links up to the first one that the limit
-- leaves out, and the items of the pages admitted now.
-- KEYS: the crawl, its pages, admitted, retrying, backlog, unconfirmed, record, the host, its requests in flight, its
-- hold, active crawls, the run id of Redis.
-- ARGV: delay of the host (s), window or '' for a host that is not the crawl's own, pages that all crawls may have
-- admitted, ttl (s), pages that the crawl may have, the crawl's id, names of messages whose unconfirmed pages are
-- published with commas between them, URLs of a pattern, URLs of a path with several parameters, identical texts in a
-- row, pages that a message may have or '', what tells the crawl that has seen the links left out from others, or ''.
-- Then for each page: its message's name, 'd' (done), 'x' (dead) or 'f' (failed),
-- 1 if it is indexed, line of the record or '', or the error of a failed one, hash of its text or '',
-- length of its canonical key, number of links, number of excluded links, a name and an entry for each link, and a
-- reason, a name and an entry for each excluded link.
-- Sitemaps of a crawl.
local SITEMAPS = 1000
local crawl, pages, admitted, retrying = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local failures, budgets, texts = crawl .. ':failures', cached_hash(crawl .. ':budgets'), cached_hash(crawl .. ':texts')
local delay, max_pages = tonumber(ARGV[1]), tonumber(ARGV[5])
local limits = {pattern = tonumber(ARGV[8]), variants = tonumber(ARGV[9]), identical = tonumber(ARGV[10])}
local ended, names, states, links, hashes, linked = {}, {}, {}, {}, {}, {}
local info = redis.call('HMGET', crawl, 'state', 'seen', 'done', 'dead', 'indexed', 'born', 'recorded')
local born = (info[6] or '') .. ' ' .. (redis.call('GET', KEYS[12]) or '')
if ARGV[12] ~= '' and ARGV[12] ~= born then
    return {born}
end
local at = 13
while at < #ARGV do
    local each = {name = ARGV[at], state = ARGV[at + 1], indexed = ARGV[at + 2] == '1', line = ARGV[at + 3]}
    each.text, each.length, each.links = ARGV[at + 4], tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
    each.first = at + 8
    each.excluded = each.first + 2 * each.links
    at = each.excluded + 3 * tonumber(ARGV[at + 7])
    each.last = at - 1
    if each.state == 'f' then
        note_failed(admitted, retrying, failures, each.name, each.line)
        each = {name = each.name}
    else
        append(names, each.name)
        append(states, each.name, each.state)
        for link = each.first, each.excluded - 1, 2 do
            linked[#linked + 1] = ARGV[link]
        end
        if each.text ~= '' then
            append(hashes, each.text)
        end
    end
    append(ended, each)
end
local now = seconds()
-- A page without a request, or whose request ended before, does not delay the next request.
if end_request(KEYS[9], ended[1].name) and delay > 0 then
    redis.call('HSET', KEYS[8], 'last', string.format('%.6f', now))
end
local seen, count = tonumber(info[2] or 0), {d = 0, x = 0, indexed = 0}
local former, entries = {}, {}
if #names > 0 then
    former, entries = redis.call('HMGET', pages, unpack(names)), redis.call('HMGET', admitted, unpack(names))
    redis.call('HSET', pages, unpack(states))
    redis.call('HDEL', failures, unpack(names))
    redis.call('HDEL', crawl .. ':former', unpack(names))
    if redis.call('HDEL', admitted, unpack(names)) < #names then
        for index, name in ipairs(names) do
            entries[index] = entries[index] or redis.call('HGET', retrying, name)
        end
        redis.call('HDEL', retrying, unpack(names))
    end
end
-- Pages of a cancelled crawl do not wait: nothing would admit them.
local follows, found = info[1] ~= 'cancelled', {}
for index, state in ipairs(follows and call_in_parts('HMGET', pages, linked) or {}) do
    found[linked[index]] = state
end
read_ahead(texts, hashes)
local lines, is_again, caller, number, size = {}, false, nil, 0, ARGV[11]
local new, waiting = {}, {}
for index, each in ipairs(ended) do
    links[index] = 0
    if each.state then
        number = number + 1
        local is_repeated_call = former[number] == each.state
        if not caller then
            caller, is_again = each.name, is_repeated_call
        end
        if not is_repeated_call then
            count[each.state] = count[each.state] + 1
            count.x = count.x - (former[number] == 'x' and 1 or 0)
            count.indexed = count.indexed + (each.indexed and 1 or 0)
            if each.text ~= ''
                and count_text(budgets, texts, each.text, each.length, charges_of(entries[number] or '')) then
                -- This may be a trap: few pages are to be in work when its budget is spent.
                size = '1'
            end
        end
        if #each.name > NAME then
            -- One of the two messages of a page. When both are completed, no message asks for its fetch result any
            -- more.
            local page, twin = string.sub(each.name, 2), string.sub(each.name, 1, 1) == 'i' and 'c' or 'i'
            local other = redis.call('HGET', pages, twin .. page)
            if other == 'd' or other == 'x' then
                redis.call('DEL', crawl .. ':result:' .. page)
            end
        end
        -- Links that a sweep must find by this page: those to pages that are new, and those that show what is left out.
        local needed = {}
        links[index] = follows and each.links or 0
        for link = each.first, each.first + 2 * links[index] - 1, 2 do
            local name, entry = ARGV[link], ARGV[link + 1]
            if not found[name] and seen >= max_pages then
                if exclude(crawl, pages, 'max-pages', name, entry) then
                    if note_left_out(crawl, 'max-pages', '') then
                        append(needed, entry)
                    end
                    links[index] = math.min(links[index], (link - each.first) / 2)
                end
            elseif not found[name] then
                local charges = charges_of(entry)
                local reason = spent(budgets, charges, limits)
                local is_sitemap = string.find(entry, '"sitemap"', 1, true)
                if is_sitemap and tonumber(redis.call('HGET', crawl, 'sitemaps') or 0) >= SITEMAPS then
                    reason = 'max-sitemaps'
                end
                if reason then
                    exclude(crawl, pages, reason, name, entry)
                    if note_left_out(crawl, reason, charges) then
                        append(needed, entry)
                    end
                else
                    found[name] = 'w'
                    append(new, name, 'w')
                    append(waiting, name .. entry)
                    if is_sitemap then
                        redis.call('HINCRBY', crawl, 'sitemaps', 1)
                    end
                    note_soft_404_check(crawl, name, entry)
                    charge(budgets, charges)
                    if is_page(entry) then
                        seen = seen + 1
                        append(needed, entry)
                    end
                end
            end
        end
        for triple = each.excluded, each.last, 3 do
            local reason, name = ARGV[triple], ARGV[triple + 1]
            if not found[name] and exclude(crawl, pages, reason, name, ARGV[triple + 2]) and reason == 'max-depth' then
                redis.call('HSET', crawl, 'cut', 1)
            end
        end
        if each.line ~= '' and not is_repeated_call then
            append(lines, with_links(each.line, needed))
        end
    end
end
call_in_parts('HSET', pages, new)
call_in_parts('RPUSH', KEYS[5], waiting)
write_hash(budgets)
write_hash(texts)
local write = push_lines(crawl, KEYS[7], lines, ended[1].name)
local fields = {'last', string.format('%.3f', now), 'rounds', 0, 'seen', seen}
for index, name in ipairs({'done', 'dead', 'indexed'}) do
    local more = count[({'d', 'x', 'indexed'})[index]]
    if more ~= 0 then
        append(fields, name, tonumber(info[index + 2] or 0) + more)
    end
end
if caller and states[2] == 'd' and ARGV[2] ~= '' then
    append(fields, 'window', ARGV[2], 'delay', ARGV[1])
    if size ~= '' then
        append(fields, 'batch', size)
    end
end
redis.call('HSET', crawl, unpack(fields))
for each in string.gmatch(ARGV[7], '[^,]+') do
    redis.call('HDEL', KEYS[6], each)
end
local items, batch = {}, 1
if is_again then
    items = open_items(admitted, redis.call('HGET', KEYS[6], caller) or '')
elseif caller and redis.call('PTTL', KEYS[10]) <= 0 then
    items, batch = admit(crawl, pages, admitted, KEYS[5], KEYS[11], tonumber(ARGV[3]))
    local unconfirmed = {}
    for index, item in ipairs(items) do
        unconfirmed[index] = string.sub(item, 1, NAME)
    end
    if #items > 0 then
        redis.call('HSET', KEYS[6], caller, table.concat(unconfirmed))
    end
end
-- A key that this call has made gets its TTL at once: a crawl of a client has no end.
expire(crawl, ARGV[4], 'NX')
local left = redis.call('HLEN', admitted) + redis.call('HLEN', retrying) + redis.call('LLEN', KEYS[5])
-- Also a crawl that has nothing left, until its end is recorded.
if left > 0 or redis.call('HEXISTS', crawl, 'domain') == 1 then
    redis.call('SADD', KEYS[11], ARGV[6])
end
local wait = string.format('%.3f', rest(KEYS[8], delay, now))
return {born, left == 0 and info[7] == '1' and 1 or 0, write, wait, batch, links, unpack(items)}
