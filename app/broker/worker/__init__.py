"""Celery's worker, in which every failure is a decision of the queue's retry policy."""
