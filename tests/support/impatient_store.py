"""The application that gives up a silent S3 server soon: `celery -A tests.support.impatient_store worker`."""

from app.celery import app
from app.storage import s3

__all__ = ["app"]

#: Seconds in place of eight. A request has three attempts, and so hangs as long as a reply may take.
vars(s3).update(READ_TIMEOUT=3.0)
