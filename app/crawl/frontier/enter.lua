-- Begin the work on the pages of a message, in one round trip. Returns an action and its values:
-- 'pages', the hash of the text of its site's error page, 1 if Redis has what the former crawl knew, and a row for each
-- page; 'unknown' for a crawl that Redis does not have, of which no trace is left here; 'wait' and seconds; 'busy' and
-- the number of a page while another message of it is worked on; 'foreign' and the domain of the crawl.
-- The row of a page: 'fetch' and what the former crawl knew of it; 'done' and the items that it admitted, to be
-- published again; 'held' and 'cancelled': nothing is to do; 'not-due' and what the former crawl knew of it; 'spent'
-- and a reason code where pages like this one became a trap meanwhile.
-- A call that is repeated returns the same again: its request is in flight. An earlier run of the same message has
-- ended.
-- KEYS: the crawl, its pages, admitted, retrying, backlog, unconfirmed, the host, its requests in flight, its hold.
-- ARGV: domain, run (8 characters) and id of the message with a space between, lease (s), requests that the host may
-- have in flight, delay (s), 1 if the host is the crawl's own, identical texts in a row, 1 if pages are to be requested
-- though they are not due, then a name and an entry for each page.
local FIRST = 9
local names, entries = {}, {}
for at = FIRST, #ARGV - 1, 2 do
    names[#names + 1], entries[#entries + 1] = ARGV[at], ARGV[at + 1]
end
local request, delay = table.concat(names, ',') .. ' ' .. ARGV[2], tonumber(ARGV[5])
local info = redis.call('HMGET', KEYS[1], 'domain', 'state', 'soft_404', 'former')
if not info[1] then
    return {'unknown'}
end
if info[1] ~= ARGV[1] then
    return {'foreign', info[1]}
end
local states = redis.call('HMGET', KEYS[2], unpack(names))
local former = redis.call('HMGET', KEYS[1] .. ':former', unpack(names))
local is_paused, now = info[2] == 'paused', seconds()
local rows, wanted, budgets = {}, {}, cached_hash(KEYS[1] .. ':budgets')
for index, name in ipairs(names) do
    local charges = charges_of(entries[index])
    if states[index] == 'd' then
        rows[index] = {'done', unpack(open_items(KEYS[3], redis.call('HGET', KEYS[6], name) or ''))}
    elseif info[2] == 'cancelled' then
        redis.call('HDEL', KEYS[3], name)
        redis.call('HDEL', KEYS[4], name)
        rows[index] = {'cancelled'}
    elseif not is_paused and is_repeated(budgets, charges, tonumber(ARGV[7])) then
        note_left_out(KEYS[1], 'identical-texts', charges)
        rows[index] = {'spent', 'identical-texts'}
    else
        rows[index] = {'fetch', former[index] or ''}
        wanted[#wanted + 1] = index
    end
end
local reply = {'pages', info[3] or '', info[4] or '', rows}
local requests = #wanted > 0 and redis.call('ZRANGE', KEYS[8], 0, -1, 'WITHSCORES') or {}
local others = {}
for at = 1, #requests, 2 do
    local member = requests[at]
    if member == request then
        return reply
    end
    if string.match(member, '^[^ ]* [^ ]* (.*)$') == string.match(ARGV[2], '^[^ ]* (.*)$') then
        redis.call('ZREM', KEYS[8], member)
    elseif tonumber(requests[at + 1]) > now then
        others[#others + 1] = string.match(member, '^[^ ]*')
    else
        redis.call('ZREM', KEYS[8], member)
    end
end
local hold = #wanted > 0 and redis.call('PTTL', KEYS[9]) or 0
local fetched = {}
for _, index in ipairs(wanted) do
    local name = names[index]
    local due = tonumber(string.match(former[index] or '', ',([%d.]+)%]$') or 0)
    if not is_paused and ARGV[8] == '0' and due > now then
        rows[index][1] = 'not-due'
    -- A message that failed has spent a part of its budget, which the backlog does not keep.
    elseif is_paused or (hold > 0 and ARGV[6] == '1' and redis.call('HEXISTS', KEYS[4], name) == 0) then
        if states[index] ~= 'w' then
            if states[index] == 'x' then
                redis.call('HINCRBY', KEYS[1], 'dead', -1)
            elseif not states[index] and is_page(entries[index]) then
                redis.call('HINCRBY', KEYS[1], 'seen', 1)
            end
            redis.call('HDEL', KEYS[3], name)
            redis.call('HDEL', KEYS[4], name)
            redis.call('HSET', KEYS[2], name, 'w')
            redis.call('LPUSH', KEYS[5], name .. entries[index])
        end
        rows[index] = {'held'}
    else
        fetched[#fetched + 1] = index
    end
end
if #fetched == 0 then
    return reply
end
if hold > 0 then
    return {'wait', string.format('%.3f', hold / 1000)}
end
for _, index in ipairs(fetched) do
    for _, other in ipairs(others) do
        if string.find(other, names[index], 1, true) then
            return {'busy', index}
        end
    end
end
if #others >= tonumber(ARGV[4]) then
    return {'wait', string.format('%.3f', math.max(delay, 0.25))}
end
local wait = rest(KEYS[7], delay, now)
if wait > 0 then
    return {'wait', string.format('%.3f', wait)}
end
if delay > 0 then
    redis.call('HSET', KEYS[7], 'last', string.format('%.6f', now))
    redis.call('EXPIRE', KEYS[7], 86400)
end
redis.call('ZADD', KEYS[8], string.format('%.3f', now + ARGV[3]), request)
redis.call('EXPIRE', KEYS[8], ARGV[3])
local opened = {}
for index, entry in ipairs(redis.call('HMGET', KEYS[3], unpack(names))) do
    if rows[index][1] == 'fetch' and not states[index] then
        redis.call('HINCRBY', KEYS[1], 'seen', is_page(entries[index]) and 1 or 0)
        redis.call('HSET', KEYS[2], names[index], 'o')
    end
    if rows[index][1] == 'fetch' and not entry then
        append(opened, names[index], entries[index])
        redis.call('HDEL', KEYS[4], names[index])
    end
end
if #opened > 0 then
    redis.call('HSET', KEYS[3], unpack(opened))
end
return reply
