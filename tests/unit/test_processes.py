"""Which processes of the Procfile the settings need."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from app.coverart.project import COVER_ART, EVENT_ART, settings_of
from app.services.procfile import left_out
from config.settings import Settings

pytestmark = pytest.mark.unit

DATABASE = SecretStr("postgresql://127.0.0.1/musicbrainz_db")
EVENTS = "event-art-archive"


def test_cover_art_event_art_and_the_event_reader_run_only_where_they_have_work() -> None:
    assert left_out(Settings()) == {"coverart", "eventart", "eventreader"}
    assert left_out(Settings(musicbrainz_url=DATABASE)) == {"eventart", "eventreader"}
    assert left_out(Settings(musicbrainz_url=DATABASE, event_art_exchange=EVENTS)) == {"eventreader"}
    assert left_out(Settings(musicbrainz_url=DATABASE, event_queue_url=DATABASE)) == {"eventart"}
    only_events = Settings(musicbrainz_url=DATABASE, cover_art_exchange="", event_art_exchange=EVENTS)
    assert left_out(only_events) == {"coverart", "eventreader"}
    assert left_out(Settings(event_queue_url=DATABASE)) == {"coverart", "eventart", "eventreader"}


def test_event_art_uses_its_own_keys_or_else_those_of_cover_art() -> None:
    given = Settings(archive_access_key=SecretStr("a"), archive_secret_key=SecretStr("b"))
    own = given.model_copy(
        update={"event_archive_access_key": SecretStr("c"), "event_archive_secret_key": SecretStr("d")}
    )

    def keys(settings: Settings) -> tuple[str, str]:
        return settings.archive_access_key.get_secret_value(), settings.archive_secret_key.get_secret_value()

    assert keys(settings_of(EVENT_ART, given)) == ("a", "b")
    assert keys(settings_of(EVENT_ART, own)) == ("c", "d")
    assert keys(settings_of(COVER_ART, own)) == ("a", "b")
