-- Functions of the scripts that admit pages. A backlog item is a page's name (16 characters) and its entry as JSON.

-- Return the number of the item's characters that are its name.
local NAME = 16

-- Return the admission window of a crawl: one message until its probe is completed, so that it comes before the pages.
local function window_of(info, pages, window, probe)
    if probe then
        local state = redis.call('HGET', pages, probe)
        if state == 'w' or state == 'o' then
            return 1
        end
        redis.call('HDEL', info, 'probe')
    end
    return tonumber(window) or 1
end

-- Admit pages of a crawl from its backlog into its admission window. Return their items.
-- `total` is the number of pages that all active crawls may have admitted together.
local function admit(info, pages, admitted, backlog, active, total)
    local fields = redis.call('HMGET', info, 'state', 'window', 'probe')
    if (fields[1] and fields[1] ~= 'running') or total <= 0 then
        return {}
    end
    local share = math.floor(total / math.max(1, redis.call('SCARD', active)))
    local room = math.max(1, math.min(window_of(info, pages, fields[2], fields[3]), share)) - redis.call('HLEN', admitted)
    local items = {}
    while room > 0 do
        local item = redis.call('LPOP', backlog)
        if not item then
            break
        end
        local name = string.sub(item, 1, NAME)
        -- A Redis that lost its last writes has pages in a backlog that were completed since.
        if redis.call('HGET', pages, name) ~= 'd' then
            redis.call('HSET', pages, name, 'o')
            redis.call('HSET', admitted, name, string.sub(item, NAME + 1))
            items[#items + 1] = item
            room = room - 1
        end
    end
    return items
end

-- Return the items of those pages that are still open. `names` is their names one after the other.
local function open_items(admitted, names)
    local items = {}
    for at = 1, #names, NAME do
        local name = string.sub(names, at, at + NAME - 1)
        local entry = redis.call('HGET', admitted, name)
        if entry then
            items[#items + 1] = name .. entry
        end
    end
    return items
end

-- Return the member of a page's request in a host's requests in flight, or nil. A member is the name of the page, the run
-- of its message (8 characters) and the id of that message, with spaces between them.
local function request_of(flight, name)
    for _, member in ipairs(redis.call('ZRANGE', flight, 0, -1)) do
        if string.sub(member, 1, #name + 1) == name .. ' ' then
            return member
        end
    end
end

-- End the request of a page. Return whether one was in flight.
local function end_request(flight, name)
    local request = request_of(flight, name)
    return request ~= nil and redis.call('ZREM', flight, request) == 1
end

-- Return the present time of Redis in seconds.
local function seconds()
    local clock = redis.call('TIME')
    return clock[1] + clock[2] / 1000000
end

-- Return the seconds until the next request to a host, given the time of the last one; 0 means now.
local function rest(host, delay, now)
    local last = delay > 0 and tonumber(redis.call('HGET', host, 'last'))
    -- A time in the future shows that the clock was set back.
    if not last or last > now + 1 then
        return 0
    end
    return math.max(0, last + delay - now)
end
