-- Return the number of lines of a crawl's record that are in the store, and those of the next segment.
-- KEYS: the crawl, its record.
local lines, bytes = {}, 0
for at = 0, SEGMENT_LINES - 1 do
    local line = redis.call('LINDEX', KEYS[2], at)
    bytes = bytes + #(line or '')
    if not line or (at > 0 and bytes > SEGMENT_BYTES) then
        break
    end
    lines[at + 1] = line
end
return {tonumber(redis.call('HGET', KEYS[1], 'stored') or 0), lines}
