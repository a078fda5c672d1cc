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
        redis.call('HSET', pages, name, 'o')
        redis.call('HSET', admitted, name, string.sub(item, NAME + 1))
        items[#items + 1] = item
        room = room - 1
    end
    return items
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
