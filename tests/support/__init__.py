"""What several tests need: waiting for conditions, running workers."""
