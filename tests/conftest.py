"""Fixtures with real services: private ones, or an own vhost and an empty database of given ones; never a mock."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import hypothesis
import pytest
import redis
from pydantic import SecretStr

from app import private_services as private
from app.errors import ServicesError
from app.machine import try_lock
from app.private_services import Urls
from config.settings import Settings
from tests.servers.musicbrainz import database
from tests.servers.postgres import postgres
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.kill import Killable, discard

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def _variables() -> set[str]:
    """Return the environment variables that `Settings` reads."""
    names = {str(field.validation_alias or name).upper() for name, field in Settings.model_fields.items()}
    return names | {f"{name}_FILE" for name in names}


# Tests do not depend on the user's environment: every setting is removed, except the servers that tests may use.
_GIVEN = Settings.model_construct(
    **{name: getattr(Settings(), name) for name in ("broker_url", "redis_url", "broker_api_url")}
)
for _name in _variables():
    os.environ.pop(_name, None)


# Every run checks the same examples, so that no change fails by chance. `pytest --hypothesis-profile=default` searches
# for new ones.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def pytest_configure() -> None:
    """Let SIGTERM end the run as Ctrl-C does, so that no service keeps running, and collect no garbage at first.

    Modules and tests stay: a tenth of the time of collecting them was spent on looking for garbage.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules with a test marked `slow` first, then the largest, and unit tests at the end.

    Each process of a run takes the next module that no other one has taken. The last ones to run must be short, and
    must not wait for anything.
    """
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    unit = {item.path for item in items if item.get_closest_marker("unit")}
    items.sort(key=lambda item: (item.path in unit, item.path not in slow, -sizes[item.path], item.path))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the modules and tests: they stay to the end, and it walks them often."""
    gc.collect()
    gc.freeze()
    gc.enable()


@contextmanager
def _shared_broker(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Settings]:
    """Run a RabbitMQ for the block; all processes of this test run share it, and the last one stops it."""
    own = tmp_path_factory.getbasetemp()
    folder = own if worker_id == "master" else own.parent
    # A given Redis is not started here: each process has its own.
    settings = Settings(data_dir=folder / "broker", redis_url=SecretStr("redis://127.0.0.1"))
    with (folder / "broker-users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        try:
            private.up(settings)
            yield settings
        finally:
            if try_lock(users):
                discard(settings)


@pytest.fixture(scope="session")
def session_services(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Settings]:
    """Yield settings of the services of this process: the run's RabbitMQ and a Redis of its own, or given ones."""
    with ExitStack() as running:
        broker_url, broker_api_url = _GIVEN.broker_url, _GIVEN.broker_api_url
        if not broker_url.get_secret_value():
            shared = running.enter_context(_shared_broker(tmp_path_factory, worker_id))
            broker_url, broker_api_url = SecretStr(shared.broker), SecretStr(shared.broker_api)
        settings = Settings(
            data_dir=tmp_path_factory.mktemp("services"),
            broker_url=broker_url,
            redis_url=_GIVEN.redis_url,
            broker_api_url=broker_api_url,
        )
        running.callback(discard, settings)
        private.up(settings)
        yield settings


@pytest.fixture(scope="session")
def services(session_services: Settings, worker_id: str) -> Urls:
    """Return the URLs of the services. Given ones must have a management API and an empty database."""
    if not session_services.broker_api:
        raise ServicesError("BROKER_URL is given without BROKER_API_URL: the tests cannot make a vhost of their own")
    return Urls(session_services.broker, _empty_database(session_services, worker_id), session_services.broker_api)


@pytest.fixture(scope="session")
def private_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Yield settings of a RabbitMQ and a Redis that no other process uses, and that tests may kill."""
    settings = Settings(data_dir=tmp_path_factory.mktemp("killable"))
    yield settings
    discard(settings)


@pytest.fixture
def killable(private_services: Settings, tmp_path: Path) -> Iterator[Killable]:
    """Yield a RabbitMQ and a Redis that the test may kill, with a vhost and an empty database of its own."""
    urls = private.up(private_services)
    with own_vhost(urls) as broker_url:
        settings = settings_for(tmp_path, broker_url, urls.redis_url, urls.broker_api_url)
        try:
            yield Killable(settings, private_services)
        finally:
            private.up(private_services)
            with redis.Redis.from_url(urls.redis_url) as client:
                client.flushdb()


@pytest.fixture
def broker_url(services: Urls) -> Iterator[str]:
    """Yield the AMQP URL of a vhost, private to this test."""
    with own_vhost(services) as url:
        yield url


@pytest.fixture
def broker_api_url(services: Urls) -> str:
    """Yield the management API's URL, which sees the vhosts of all tests."""
    return services.broker_api_url


@pytest.fixture
def redis_url(services: Urls) -> Iterator[str]:
    """Yield the URL of a Redis database that is empty, and is emptied again."""
    with redis.Redis.from_url(services.redis_url) as client:
        client.flushdb()
        yield services.redis_url
        client.flushdb()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Yield the URL of a PostgreSQL for this run."""
    with postgres() as url:
        yield url


@pytest.fixture(scope="session")
def musicbrainz_template(postgres_url: str) -> Iterator[tuple[str, str]]:
    """Yield the URL of a PostgreSQL for this run, and the name of a database on it that looks like MusicBrainz's."""
    with database.template(postgres_url) as name:
        yield postgres_url, name


@pytest.fixture(scope="session")
def event_queue_template(postgres_url: str) -> Iterator[tuple[str, str]]:
    """Yield what `musicbrainz_template` does, of a database whose triggers write `artwork_indexer.event_queue`."""
    with database.template(postgres_url, "event_queue") as name:
        yield postgres_url, name


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Yield a browser, which only few processes of a run start: playwright is imported where it is used."""
    from tests.support.browser import chromium

    with chromium(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def musicbrainz_url(musicbrainz_template: tuple[str, str]) -> Iterator[str]:
    """Yield the URL of an empty MusicBrainz database, private to this test."""
    with database.copy_of(*musicbrainz_template) as url:
        yield url


@pytest.fixture
def settings(tmp_path: Path, broker_url: str, redis_url: str, broker_api_url: str) -> Settings:
    """Return settings with a folder and vhost of the test's own, an empty Redis and short delays."""
    return settings_for(tmp_path, broker_url, redis_url, broker_api_url)


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    """Return the environment of a process that runs with `settings`."""
    return environment_of(settings)


def _empty_database(running: Settings, worker_id: str) -> str:
    """Return the URL of a database without keys: a given Redis may hold a user's data.

    Each process of one test run (`gw0`, `gw1`, ...) chooses among databases of its own.
    """
    if not running.redis_url.get_secret_value():
        return running.redis
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    numbers = range(15 - (0 if worker_id == "master" else int(worker_id[2:])), -1, -processes)
    for number in numbers:
        url = urlsplit(running.redis)._replace(path=f"/{number}").geturl()
        with redis.Redis.from_url(url) as client:
            try:
                if client.dbsize() == 0:
                    return url
            except redis.ResponseError:  # The server has fewer databases.
                continue
    raise ServicesError("REDIS_URL: no database from 0 to 15 is empty, and tests change only their own data")
