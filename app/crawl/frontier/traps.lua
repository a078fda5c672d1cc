-- Functions of the scripts that count URLs and texts, so that a crawl ends where a server has URLs without end.
-- A backlog entry ends with the charges of its URL: items of a letter and eight hex digits; see app/crawl/traps.py.

local CHARGE = 9
-- What a text counts that was met before below the same pattern. The first copy of one from elsewhere counts 1.
local REPEATED = 10

-- Return a hash of Redis of which a script reads each field once. What it sets is written by `write_hash`.
local function cached_hash(key)
    return {key = key, values = {}, changed = {}}
end

-- Read fields with one command.
local function read_ahead(hash, fields)
    for index, value in ipairs(call_in_parts('HMGET', hash.key, fields)) do
        hash.values[fields[index]] = value
    end
end

-- Return the value of a field, false without one.
local function value_of(hash, field)
    if hash.values[field] == nil then
        hash.values[field] = redis.call('HGET', hash.key, field)
    end
    return hash.values[field]
end

-- Set a field, or with false remove it.
local function set_value(hash, field, value)
    hash.values[field], hash.changed[field] = value, true
end

-- Add to the number in a field.
local function add_to(hash, field, number)
    set_value(hash, field, tonumber(value_of(hash, field) or 0) + number)
end

-- Write the fields that were set, and remove those that were removed.
local function write_hash(hash)
    local set, removed = {}, {}
    for field in pairs(hash.changed) do
        if hash.values[field] then
            append(set, field, hash.values[field])
        else
            append(removed, field)
        end
    end
    call_in_parts('HSET', hash.key, set)
    call_in_parts('HDEL', hash.key, removed)
end

-- Return the charges of an entry.
local function charges_of(entry)
    return string.match(entry, '"([div%x]*)"%]$') or ''
end

-- Return whether the URL of an entry is a page: a sitemap and the soft-404 check are not.
local function is_page(entry)
    return not string.find(entry, '"sitemap"', 1, true) and not string.find(entry, '"soft-404-check"', 1, true)
end

-- Note the soft-404 check of a crawl, if the entry is one: `admit` admits one message at a time until it is completed.
local function note_soft_404_check(crawl, name, entry)
    if string.find(entry, '"soft-404-check"', 1, true) then
        redis.call('HSET', crawl, 'soft_404_check', name)
    end
end

-- Return the key of the identical texts in a row below the pattern that the first charge names.
local function identical(charges)
    return 'i' .. string.sub(charges, 2, CHARGE)
end

-- Return whether the pages below the pattern of a URL have had one text, or texts known by then, for `limit` times in a
-- row, or REPEATED times as often if each was a first copy.
local function is_repeated(budgets, charges, limit)
    return charges ~= '' and tonumber(value_of(budgets, identical(charges)) or 0) >= limit * REPEATED
end

-- Return the reason code of the budget that is spent for a URL with these charges, or nil.
-- `limits`: URLs of a pattern, URLs of a path with several parameters, identical texts in a row.
local function spent(budgets, charges, limits)
    if is_repeated(budgets, charges, limits.identical) then
        return 'identical-texts'
    end
    for at = 1, #charges, CHARGE do
        local letter, charge = string.sub(charges, at, at), string.sub(charges, at, at + CHARGE - 1)
        local limit = letter == 'd' and limits.pattern or letter == 'v' and limits.variants
        if limit and tonumber(value_of(budgets, charge) or 0) >= limit then
            return letter == 'd' and 'pattern-pages' or 'query-variants'
        end
    end
    return nil
end

-- Note that the crawl does not follow a URL with these charges. Identical texts close its pattern, and the packer keeps
-- what is stored below it. Any other reason cuts the crawl. Return whether this is the first such URL.
local function note_left_out(crawl, reason, charges)
    if reason ~= 'identical-texts' then
        return redis.call('HSET', crawl, 'cut', 1) == 1
    elseif redis.call('SADD', crawl .. ':closed', string.sub(charges, 2, CHARGE)) == 1 then
        local left = redis.call('TTL', crawl)
        redis.call('EXPIRE', crawl .. ':closed', left > 0 and left or 86400)
        return true
    end
    return false
end

-- Count a URL that is added to the crawl.
local function charge(budgets, charges)
    for at = 1, #charges, CHARGE do
        if string.sub(charges, at, at) ~= 'i' then
            add_to(budgets, string.sub(charges, at, at + CHARGE - 1), 1)
        end
    end
end

-- Count the text of a page. A text that was met before below the pattern of a shorter URL is identical: the shorter
-- one of two URLs is the page. A new text ends the row. `texts` has the length and the pattern of the shortest URL of
-- each text, and a field for the first copy below each other pattern: a translated site has each missing page once a
-- language.
-- Return whether the text is identical.
local function count_text(budgets, texts, text, length, charges)
    local former, source = string.match(value_of(texts, text) or '', '^(%d+) (.*)$')
    local here = string.sub(charges, 2, CHARGE)
    if not former or length < tonumber(former) then
        set_value(texts, text, length .. ' ' .. here)
    end
    if charges == '' then
        return false
    end
    if not former then
        set_value(budgets, identical(charges), false)
    elseif length >= tonumber(former) then
        local is_copy = source ~= here and not value_of(texts, here .. text)
        if is_copy then
            set_value(texts, here .. text, '')
        end
        add_to(budgets, identical(charges), is_copy and 1 or REPEATED)
        return true
    end
    return false
end
