"""The application with one page a message: `celery -A tests.support.single_pages worker`."""

from app.celery import app
from app.crawl import page

__all__ = ["app"]

page.MOST_PAGES = 1
