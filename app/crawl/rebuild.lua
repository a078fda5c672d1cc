-- Note pages of a restored crawl that Redis does not know. Returns the number of pages added to the backlog.
-- KEYS: the crawl, its pages, backlog. ARGV: for each page 'd' or 'x' (dead), its name, 1 if it belongs in the pack; or 'w', its name
-- and its entry.
local added, done, dead, indexed = 0, 0, 0, 0
for at = 1, #ARGV - 2, 3 do
    if redis.call('HSETNX', KEYS[2], ARGV[at + 1], ARGV[at]) == 1 then
        if ARGV[at] == 'w' then
            redis.call('RPUSH', KEYS[3], ARGV[at + 1] .. ARGV[at + 2])
            added = added + 1
        else
            done = done + (ARGV[at] == 'd' and 1 or 0)
            dead = dead + (ARGV[at] == 'x' and 1 or 0)
            indexed = indexed + ARGV[at + 2]
        end
    end
end
redis.call('HINCRBY', KEYS[1], 'seen', added + done + dead)
redis.call('HINCRBY', KEYS[1], 'dead', dead)
redis.call('HINCRBY', KEYS[1], 'done', done)
redis.call('HINCRBY', KEYS[1], 'indexed', indexed)
return added
