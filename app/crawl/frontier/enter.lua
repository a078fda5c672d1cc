-- Begin the work on a page's message, in one round trip. Returns an action and its values:
-- 'fetch', what tells this crawl and this Redis from former ones, what the former crawl knew of the page, the hash of the text
-- of its site's error page, and 1 if Redis has what the former crawl knew; 'done' and the items that the page handed
-- over, to be published again; 'unknown' for a crawl that Redis does not have, of which no trace is left here;
-- 'wait' and seconds; 'busy' while another message of the page is worked on; 'held' and 'cancelled': nothing is to do;
-- 'not-due' and what the former crawl knew of the page, if it is not due; 'foreign' and the domain of the crawl; 'spent'
-- and a reason code where pages like this one became a trap meanwhile.
-- A call that is repeated returns 'fetch' again: its request is in flight. An earlier run of the same message has ended.
-- KEYS: the crawl, its pages, admitted, retrying, backlog, handover, the host, its requests in flight, its hold, the epoch.
-- ARGV: page's name, domain, entry, run (8 characters) and id of the message with a space between, lease (s),
-- requests that the host may have in flight, delay (s), 1 if the host is the crawl's own, identical texts in a row,
-- 1 if the page is to be requested though it is not due.
local name, request, delay = ARGV[1], ARGV[1] .. ' ' .. ARGV[4], tonumber(ARGV[7])
local info = redis.call('HMGET', KEYS[1], 'domain', 'state', 'born', 'soft_404', 'former')
if not info[1] then
    return {'unknown'}
end
if info[1] ~= ARGV[2] then
    return {'foreign', info[1]}
end
local state = redis.call('HGET', KEYS[2], name)
if state == 'd' then
    return {'done', unpack(open_items(KEYS[3], redis.call('HGET', KEYS[6], name) or ''))}
end
if info[2] == 'cancelled' then
    redis.call('HDEL', KEYS[3], name)
    redis.call('HDEL', KEYS[4], name)
    return {'cancelled'}
end
local charges = charges_of(ARGV[3])
if info[2] ~= 'paused' and is_repeated(KEYS[1] .. ':budgets', charges, tonumber(ARGV[9])) then
    note_left_out(KEYS[1], 'identical-texts', charges)
    return {'spent', 'identical-texts'}
end
local former = redis.call('HGET', KEYS[1] .. ':former', name) or ''
local fetch = {'fetch', (info[3] or '') .. (redis.call('GET', KEYS[10]) or ''), former, info[4] or '', info[5] or ''}
local earlier = request_of(KEYS[8], name)
if earlier == request then
    return fetch
end
if earlier and string.sub(earlier, NAME + 11) == string.sub(ARGV[4], 10) then
    redis.call('ZREM', KEYS[8], earlier)
    earlier = nil
end
if info[2] ~= 'paused' and ARGV[10] == '0' and tonumber(string.match(former, ',([%d.]+)%]$') or 0) > seconds() then
    return {'not-due', former}
end
local hold = redis.call('PTTL', KEYS[9])
-- A message that failed has spent a part of its budget, which the backlog does not keep.
if info[2] == 'paused' or (hold > 0 and ARGV[8] == '1' and redis.call('HEXISTS', KEYS[4], name) == 0) then
    if state ~= 'w' then
        redis.call('HDEL', KEYS[3], name)
        redis.call('HDEL', KEYS[4], name)
        redis.call('HSET', KEYS[2], name, 'w')
        redis.call('LPUSH', KEYS[5], name .. ARGV[3])
    end
    return {'held'}
end
if hold > 0 then
    return {'wait', string.format('%.3f', hold / 1000)}
end
local now = seconds()
redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now)
if earlier and redis.call('ZSCORE', KEYS[8], earlier) then
    return {'busy'}
end
if redis.call('ZCARD', KEYS[8]) >= tonumber(ARGV[6]) then
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
redis.call('ZADD', KEYS[8], string.format('%.3f', now + ARGV[5]), request)
if not state then
    redis.call('HINCRBY', KEYS[1], 'seen', is_page(ARGV[3]) and 1 or 0)
    redis.call('HSET', KEYS[2], name, 'o')
end
if redis.call('HSETNX', KEYS[3], name, ARGV[3]) == 1 then
    redis.call('HDEL', KEYS[4], name)
end
return fetch
