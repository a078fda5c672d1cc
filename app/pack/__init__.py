"""Build a domain's pack from its stored pages and publish it; `download` reads it for a searcher.

Start at `packer.pack_crawl`. `plan` decides what to build, `stored_pages` reads, `rows` and `database` write SQLite.
"""
