"""Times in the objects that operations store, which pydantic checks when it reads them."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, Field

#: The end of the year 9999, in seconds since the epoch: no later time can be shown.
_LAST_TIME: Final = 253_402_300_799


def _checked_iso(text: str) -> str:
    datetime.fromisoformat(text).astimezone()
    return text


#: In seconds since the epoch.
EpochTime = Annotated[float, Field(ge=0, le=_LAST_TIME)]
#: As ISO 8601.
IsoTime = Annotated[str, AfterValidator(_checked_iso)]
