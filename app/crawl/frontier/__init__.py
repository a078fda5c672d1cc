"""What all workers share of the crawls, in Redis: the state of each page, the backlog, the admission window."""
