-- Keep the robots.txt of a host, and of those of one domain at most some bytes: the oldest are deleted.
-- KEYS: the robots.txt, the list of the domain's, their bytes. ARGV: text, seconds, bytes that the domain may have.
-- Each counts with its key, and about what Redis needs for both.
local size = #ARGV[1] + 2 * #KEYS[1] + 100
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('RPUSH', KEYS[2], size .. ' ' .. KEYS[1])
local bytes = redis.call('INCRBY', KEYS[3], size)
while bytes > tonumber(ARGV[3]) do
    local oldest = redis.call('LPOP', KEYS[2])
    if not oldest then
        break
    end
    local its_size, its_key = string.match(oldest, '^(%d+) (.*)$')
    if its_key ~= KEYS[1] then
        redis.call('DEL', its_key)
    end
    bytes = redis.call('DECRBY', KEYS[3], its_size)
end
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('EXPIRE', KEYS[3], ARGV[2])
