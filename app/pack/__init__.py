"""From a domain's stored pages to a published pack: plan, packer, stored_pages, rows, database, publish; then fetch."""
