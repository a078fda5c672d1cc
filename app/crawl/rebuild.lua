-- Note pages of a restored crawl that Redis does not know. Returns the number of pages added to the backlog.
-- KEYS: the crawl, its pages, backlog. ARGV: URLs of a pattern, URLs of a path with several parameters, identical texts
-- in a row, then for each page 'd', 'x' (dead) or 'w' (waits), its name, 1 if it belongs in the pack, its entry, the hash
-- of its text or '', and the length of its canonical key.
local limits = {pattern = tonumber(ARGV[1]), variants = tonumber(ARGV[2]), identical = tonumber(ARGV[3])}
local budgets, texts = KEYS[1] .. ':budgets', KEYS[1] .. ':texts'
local added, done, dead, indexed = 0, 0, 0, 0
for at = 4, #ARGV - 5, 6 do
    local state, name, entry = ARGV[at], ARGV[at + 1], ARGV[at + 3]
    local charges = charges_of(entry)
    if redis.call('HEXISTS', KEYS[2], name) == 0 and not (state == 'w' and spent(budgets, charges, limits)) then
        redis.call('HSET', KEYS[2], name, state)
        charge(budgets, charges)
        if state == 'w' then
            redis.call('RPUSH', KEYS[3], name .. entry)
            added = added + 1
        else
            done = done + (state == 'd' and 1 or 0)
            dead = dead + (state == 'x' and 1 or 0)
            indexed = indexed + ARGV[at + 2]
        end
        if ARGV[at + 4] ~= '' then
            count_text(budgets, texts, ARGV[at + 4], tonumber(ARGV[at + 5]), charges)
        end
    end
end
redis.call('HINCRBY', KEYS[1], 'seen', added + done + dead)
redis.call('HINCRBY', KEYS[1], 'dead', dead)
redis.call('HINCRBY', KEYS[1], 'done', done)
redis.call('HINCRBY', KEYS[1], 'indexed', indexed)
return added
