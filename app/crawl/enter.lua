-- Begin the work on a page's message, in one round trip. Returns an action and its values:
-- 'fetch', what tells this crawl from one that Redis lost, what the former crawl knew of the page, the hash of the text
-- of its site's error page, and 1 if Redis has what the former crawl knew; 'done' and the items that the page handed
-- over, to be published again; 'unknown' for a crawl that Redis does not have, of which no trace is left here;
-- 'wait' and seconds; 'busy' while another message of the page is worked on; 'held' and 'cancelled': nothing is to do;
-- 'not-due' and what the former crawl knew of the page, if it is not due; 'foreign' and the domain of the crawl; 'spent'
-- and a reason code where pages like this one became a trap meanwhile.
-- KEYS: the crawl, its pages, admitted, retrying, backlog, handover, the host, its requests in flight, its hold.
-- ARGV: page's name, domain, entry, 1 if the message may take over from an earlier delivery, lease (s),
-- requests that the host may have in flight, delay (s), 1 if the host is the crawl's own, identical texts in a row,
-- 1 if the page is to be requested though it is not due.
local name, takeover, delay = ARGV[1], ARGV[4] == '1', tonumber(ARGV[7])
local info = redis.call('HMGET', KEYS[1], 'domain', 'state', 'born', 'soft_404', 'former')
if not info[1] then
    return {'unknown'}
end
if info[1] ~= ARGV[2] then
    return {'foreign', info[1]}
end
local state = redis.call('HGET', KEYS[2], name)
if state == 'd' then
    local reply = {'done'}
    local names = redis.call('HGET', KEYS[6], name) or ''
    for at = 1, #names, NAME do
        local each = string.sub(names, at, at + NAME - 1)
        local entry = redis.call('HGET', KEYS[3], each)
        if entry then
            reply[#reply + 1] = each .. entry
        end
    end
    return reply
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
if info[2] ~= 'paused' and ARGV[10] == '0' and tonumber(string.match(former, ',([%d.]+)%]$') or 0) > seconds() then
    return {'not-due', former}
end
local hold = redis.call('PTTL', KEYS[9])
if info[2] == 'paused' or (hold > 0 and ARGV[8] == '1' and not takeover) then
    redis.call('HDEL', KEYS[3], name)
    redis.call('HDEL', KEYS[4], name)
    redis.call('HSET', KEYS[2], name, 'w')
    redis.call('LPUSH', KEYS[5], name .. ARGV[3])
    return {'held'}
end
if hold > 0 then
    return {'wait', string.format('%.3f', hold / 1000)}
end
local now = seconds()
redis.call('ZREMRANGEBYSCORE', KEYS[8], '-inf', now)
local in_flight = redis.call('ZCARD', KEYS[8])
if in_flight > 0 and redis.call('ZSCORE', KEYS[8], name) then
    if not takeover then
        return {'busy'}
    end
    in_flight = in_flight - 1
end
if in_flight >= tonumber(ARGV[6]) then
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
redis.call('ZADD', KEYS[8], string.format('%.3f', now + ARGV[5]), name)
if not state then
    redis.call('HINCRBY', KEYS[1], 'seen', is_page(ARGV[3]) and 1 or 0)
    redis.call('HSET', KEYS[2], name, 'o')
end
if redis.call('HSETNX', KEYS[3], name, ARGV[3]) == 1 then
    redis.call('HDEL', KEYS[4], name)
end
return {'fetch', info[3] or '', former, info[4] or '', info[5] or ''}
