"""The application that ends its process by a page titled `deadly`: `celery -A tests.support.deadly_pages worker`."""

import os
import signal
from typing import Any

from app.celery import app
from app.crawl import url_runs
from app.crawl.parse.classify import FetchResult, classify

__all__ = ["app"]


def _classify(*args: Any, **kwargs: Any) -> FetchResult:
    result = classify(*args, **kwargs)
    if result.page and result.page.title == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return result


setattr(url_runs, classify.__name__, _classify)
