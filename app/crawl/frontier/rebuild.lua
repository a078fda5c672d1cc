-- Note pages that Redis does not know: of a restored crawl, or of a sitemap. Returns the number of those added to the
-- backlog, without sitemaps.
-- KEYS: the crawl, its pages, backlog. ARGV: URLs of a pattern, URLs of a path with several parameters, identical texts
-- in a row, pages that the crawl may have, then for each page 'd', 'x' (dead) or 'w' (waits), its name, 1 if it is
-- indexed, its entry, the hash of its text or '', and the length of its canonical key.
local limits = {pattern = tonumber(ARGV[1]), variants = tonumber(ARGV[2]), identical = tonumber(ARGV[3])}
local budgets, texts = cached_hash(KEYS[1] .. ':budgets'), cached_hash(KEYS[1] .. ':texts')
-- Pages of a cancelled crawl do not wait: nothing would admit them.
local cancelled = redis.call('HGET', KEYS[1], 'state') == 'cancelled'
local seen = tonumber(redis.call('HGET', KEYS[1], 'seen') or 0)
local pages, done, dead, indexed = 0, 0, 0, 0
for at = 5, #ARGV - 5, 6 do
    local state, name, entry = ARGV[at], ARGV[at + 1], ARGV[at + 3]
    local charges = charges_of(entry)
    local beyond = is_page(entry) and seen + pages >= tonumber(ARGV[4]) and 'max-pages'
    local reason = state == 'w' and (spent(budgets, charges, limits) or beyond)
    if redis.call('HEXISTS', KEYS[2], name) == 1 or (cancelled and state == 'w') then
        reason = nil
    elseif reason then
        exclude(KEYS[1], KEYS[2], reason, name, entry)
        note_left_out(KEYS[1], reason, charges)
    else
        redis.call('HSET', KEYS[2], name, state)
        charge(budgets, charges)
        if state == 'w' then
            redis.call('RPUSH', KEYS[3], name .. entry)
            note_soft_404_check(KEYS[1], name, entry)
            pages = pages + (is_page(entry) and 1 or 0)
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
write_hash(budgets)
write_hash(texts)
redis.call('HINCRBY', KEYS[1], 'seen', pages + done + dead)
redis.call('HINCRBY', KEYS[1], 'dead', dead)
redis.call('HINCRBY', KEYS[1], 'done', done)
redis.call('HINCRBY', KEYS[1], 'indexed', indexed)
return pages
