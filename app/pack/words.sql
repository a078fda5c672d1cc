-- The words of most pages, most first, down to a number of words.
INSERT INTO words (word, docs)
SELECT term, doc FROM temp.vocabulary WHERE length(term) <= :longest ORDER BY doc DESC, term LIMIT :most;
