-- Functions of the scripts that write a crawl's record: its lines wait in Redis until one process writes a segment.

-- Lines and bytes that wait until a segment is written, and that a segment has, unless it has one line only.
local SEGMENT_LINES, SEGMENT_BYTES = 500, 4 * 1024 * 1024
-- Seconds after which a process counts as dead that was to write a segment.
local WRITING = 30

-- Add lines to the record, and count their bytes. Return 1 if the caller is to write a segment: enough waits, and no
-- other one does it. A repeated call, which has no lines, returns the same.
local function push_lines(crawl, record, lines, caller)
    local waiting, bytes
    if #lines > 0 then
        waiting = redis.call('RPUSH', record, unpack(lines))
        bytes = redis.call('HINCRBY', crawl, 'record_bytes', #table.concat(lines))
    else
        waiting, bytes = redis.call('LLEN', record), tonumber(redis.call('HGET', crawl, 'record_bytes') or 0)
    end
    if bytes < SEGMENT_BYTES and waiting < SEGMENT_LINES then
        return 0
    end
    local writer = crawl .. ':writer'
    if redis.call('SET', writer, caller, 'NX', 'EX', WRITING) or redis.call('GET', writer) == caller then
        return 1
    end
    return 0
end

-- Return the line with the URLs of these entries among its links; without a change, if it has no links. Then its page
-- is stored with them, or has none.
local function with_links(line, entries)
    local urls = {}
    for _, entry in ipairs(string.sub(line, -2) == ']}' and entries or {}) do
        local url = string.gsub(cjson.encode(cjson.decode(entry)[1]), '\\/', '/')
        if not string.find(line, url, 1, true) then
            urls[#urls + 1] = url
        end
    end
    return #urls == 0 and line or string.sub(line, 1, -3) .. ',' .. table.concat(urls, ',') .. ']}'
end
