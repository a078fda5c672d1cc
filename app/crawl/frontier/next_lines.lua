-- Return the number of lines of a crawl's record that are in the store, and those of the next segment.
-- KEYS: the crawl, its record.
local lines, bytes = redis.call('LRANGE', KEYS[2], 0, SEGMENT_LINES - 1), 0
for at, line in ipairs(lines) do
    bytes = bytes + #line
    if at > 1 and bytes > SEGMENT_BYTES then
        lines = {unpack(lines, 1, at - 1)}
        break
    end
end
return {tonumber(redis.call('HGET', KEYS[1], 'stored') or 0), lines}
