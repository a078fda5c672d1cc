-- End a run that did not complete its message: the host is free for the next request. A repeated call changes nothing,
-- but for the number of failures of an `index` or a `crawl`.
-- With ARGV[2] = 1 the message failed and will be retried: it leaves the admission window meanwhile.
-- KEYS: admitted pages of the crawl, retrying, requests in flight of the host, failures.
-- ARGV: message's name, 1 if it failed, the error.
end_request(KEYS[3], ARGV[1])
if ARGV[2] == '1' then
    note_failed(KEYS[1], KEYS[2], KEYS[4], ARGV[1], ARGV[3])
end
return 1
