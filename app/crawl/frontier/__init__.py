"""What workers share of crawls in Redis: states of pages, backlog, admission window, host limits."""
