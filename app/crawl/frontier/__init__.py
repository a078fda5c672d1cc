"""What all workers share of the crawls, in Redis: states of pages, backlog, admission window, host limits."""
