"""The application with one page a message: `celery -A tests.support.single_pages worker`."""

from app.celery import app
from app.crawl import steps

__all__ = ["app"]

steps.MOST_PAGES = 1
