-- Functions of the scripts that admit pages. A backlog item is a page's name (16 characters) and its entry as JSON.

-- Return the number of the item's characters that are its name.
local NAME = 16
-- Values that one command takes, an even number: some are pairs.
local PART = 2000
-- What the keys of a crawl's parts end with. The parts of `excluded` are in exclude.lua.
local PARTS = {
    '', ':pages', ':admitted', ':retrying', ':backlog', ':unconfirmed', ':record', ':failures', ':former', ':budgets',
    ':texts', ':closed', ':refilled', ':excluded',
}

-- Add values to the end of a list.
local function append(list, ...)
    for _, value in ipairs({...}) do
        list[#list + 1] = value
    end
end

-- Call a command of a key with any number of values, of which one call takes some. Return the items of the replies.
local function call_in_parts(command, key, values)
    local items = {}
    for first = 1, #values, PART do
        local reply = redis.call(command, key, unpack(values, first, math.min(first + PART - 1, #values)))
        if type(reply) == 'table' then
            append(items, unpack(reply))
        end
    end
    return items
end

-- Return the admission window of a crawl: one message until its soft-404 check is
-- completed, so that the check comes before the pages.
local function window_of(info, pages, window, check)
    if check then
        local state = redis.call('HGET', pages, check)
        if state == 'w' or state == 'o' then
            return 1
        end
        redis.call('HDEL', info, 'soft_404_check')
    end
    return tonumber(window) or 1
end

-- Give the parts of a crawl a TTL, or with 'NX' those that have none.
local function expire(crawl, ttl, ...)
    for _, part in ipairs(PARTS) do
        redis.call('EXPIRE', crawl .. part, ttl, ...)
    end
end

-- Renew the TTL of all keys of a crawl.
local function renew(crawl, ttl)
    expire(crawl, ttl)
    for _, field in ipairs(redis.call('HKEYS', crawl)) do
        local reason = string.match(field, '^listed:(.*)$')
        if reason then
            redis.call('EXPIRE', crawl .. ':excluded:' .. reason, ttl)
        end
    end
end

-- Admit pages of a crawl from its backlog into its admission window. Return their items, and how many share a message.
-- `total` is the number of pages that all active crawls may have admitted together. A host with a delay gets one page a
-- message; any other as many as fit into BATCH_SECONDS, fewer at the end of a backlog and beside other crawls, and one
-- beside a crawl that has just begun: all processes are busy while its first pages wait. A whole backlog for a quarter
-- of BATCH_SECONDS is one message.
local function admit(info, pages, admitted, backlog, active, total)
    local fields = redis.call('HMGET', info, 'state', 'window', 'soft_404_check', 'batch')
    if (fields[1] and fields[1] ~= 'running') or total <= 0 then
        return {}, 1
    end
    local share = math.floor(total / math.max(1, redis.call('SCARD', active)))
    local window = window_of(info, pages, fields[2], fields[3])
    local waiting = redis.call('LLEN', backlog)
    local pace = tonumber(fields[4]) or 1
    local batch = math.min(pace, math.ceil(waiting / window), math.floor(share / window))
    local is_beside_new = (redis.call('GET', active .. ':new') or info) ~= info
    if window <= 1 then
        batch = 1
    elseif waiting <= pace / 4 then
        batch = waiting
    elseif is_beside_new then
        batch = 1
    end
    batch = math.max(1, batch)
    local open = redis.call('HLEN', admitted)
    -- Of the open messages, at most `window` get their requests. One that was completed makes room for one.
    local most = batch * math.max(1, window - open)
    local room = math.min(most, math.max(1, math.min(window * batch, share)) - open)
    local items = {}
    while room > 0 do
        local taken = redis.call('LPOP', backlog, room)
        if not taken then
            break
        end
        local names, opened, entries = {}, {}, {}
        for index, item in ipairs(taken) do
            names[index] = string.sub(item, 1, NAME)
        end
        -- A Redis that lost its last writes has pages in a backlog that were completed since.
        for index, state in ipairs(redis.call('HMGET', pages, unpack(names))) do
            if state ~= 'd' then
                local item = taken[index]
                items[#items + 1] = item
                append(opened, names[index], 'o')
                append(entries, names[index], string.sub(item, NAME + 1))
                room = room - 1
            end
        end
        if #opened > 0 then
            redis.call('HSET', pages, unpack(opened))
            redis.call('HSET', admitted, unpack(entries))
        end
    end
    return items, batch
end

-- Return the items of those pages that are still open. `names` are their names one after the other.
local function open_items(admitted, names)
    local items, each = {}, {}
    for at = 1, #names, NAME do
        each[#each + 1] = string.sub(names, at, at + NAME - 1)
    end
    for index, entry in ipairs(call_in_parts('HMGET', admitted, each)) do
        if entry then
            items[#items + 1] = each[index] .. entry
        end
    end
    return items
end

-- Return the member of a page's request in a host's requests in flight, or nil. A member is the names of the pages of a
-- message with commas between them, the run of the message (8 characters) and its id, with spaces between these.
local function request_of(flight, name)
    for _, member in ipairs(redis.call('ZRANGE', flight, 0, -1)) do
        if string.find(string.match(member, '^[^ ]*'), name, 1, true) then
            return member
        end
    end
end

-- End the request of a page's message. Return whether one was in flight.
local function end_request(flight, name)
    local request = request_of(flight, name)
    return request ~= nil and redis.call('ZREM', flight, request) == 1
end

-- Return the present time of Redis in seconds.
local function seconds()
    local clock = redis.call('TIME')
    return clock[1] + clock[2] / 1000000
end

-- Note that a page failed: it leaves the admission window until its retry. Its failures are counted: 'number time
-- error'. An `index` or a `crawl`, which no call enters, stays where it is.
local function note_failed(admitted, retrying, failures, name, error)
    local entry = redis.call('HGET', admitted, name)
    if entry then
        if #name == NAME then
            redis.call('HDEL', admitted, name)
            redis.call('HSET', retrying, name, entry)
        end
        local number = tonumber(string.match(redis.call('HGET', failures, name) or '', '^%d+') or 0) + 1
        redis.call('HSET', failures, name, string.format('%d %d %s', number, seconds(), error))
    end
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
