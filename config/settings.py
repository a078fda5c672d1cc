"""The settings of a process. No other module reads them from the environment."""

from __future__ import annotations

import json
import os
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from config import checks
from config.flower_login import kept_login
from config.routes import COVER_ART_EXCHANGE, MAIL, WEBHOOK

#: The checkout, or the folder in which the wheel is installed: it holds `app/`, `config/` and `tasks/`.
ROOT = Path(__file__).resolve().parent.parent

#: In a checkout it links the user's Procfile, so that a wheel has it too.
PROCFILE = Path(__file__).with_name("Procfile")

#: An installed package keeps no data beside itself: the next release would remove them.
_DATA_DIR = ROOT / ".perennial" if (ROOT / "Procfile").exists() else Path("~/.local/share/perennial").expanduser()

#: The contact in the User-Agent until one is set.
EXAMPLE_CONTACT = "https://example.org/perennial"

#: The longest retry delay in ms: RabbitMQ keeps a TTL in 31 bits, and delays are rounded up to two digits.
LONGEST_DELAY_MS = 2_100_000_000


#: Likeness from which on a variable counts as misspelt, as difflib measures it: STORE_URI of STORE_URL has 0.89.
_MISSPELT = 0.88

_HTTP = checks.url_of("http", "https")

Folder = Annotated[Path, AfterValidator(checks.folder)]
ArchiveKeys = Annotated[SecretStr, AfterValidator(checks.archive_keys)]

_Item = TypeVar("_Item")
#: Several values with commas between them.
Commas = Annotated[tuple[_Item, ...], NoDecode, BeforeValidator(checks.split_commas)]


class _EnvironmentAndFiles(EnvSettingsSource):
    """The environment, in which a secret `NAME` may be given as `NAME_FILE`, the path of a file with its value."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return what pydantic expects of a source, with a SecretFile as the value where a file is named."""
        value, key, is_complex = super().get_field_value(field, field_name)
        path = self.env_vars.get(f"{field_name}_file") if field.annotation is SecretStr else None
        return (checks.SecretFile(path, is_alone=value is None), key, False) if path else (value, key, is_complex)


class Settings(BaseSettings):
    """Every setting, read from the environment variable of the same name in capitals."""

    # An error of a wrong setting is printed and logged: it must not quote a password.
    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    # Services and folders
    data_dir: Folder = Field(
        _DATA_DIR,
        validation_alias="PERENNIAL_DATA_DIR",
        description="Private services, the folder store and caches. An installed wheel has `~/.local/share/perennial`.",
    )
    broker_url: Annotated[SecretStr, AfterValidator(checks.url_of("amqp", "amqps", several=True))] = Field(
        SecretStr(""),
        description="RabbitMQ, or the nodes of a cluster with semicolons between. Empty: the private broker.",
    )
    redis_url: Annotated[
        SecretStr, AfterValidator(checks.url_of("redis", "rediss", "unix", "sentinel", "sentinels", several=True))
    ] = Field(
        SecretStr(""),
        description="Redis or Valkey, or their Sentinels with semicolons between. Empty: the private Redis.",
    )
    broker_api_url: Annotated[SecretStr, AfterValidator(checks.url_of("http", "https", several=True))] = Field(
        SecretStr(""),
        description="RabbitMQ's management API, of each node with semicolons between. Empty: the private one, or none.",
    )
    store_url: Annotated[str, AfterValidator(checks.store_url)] = Field(
        "",
        description="`file:///folder`, or `s3://bucket/prefix`, for another server than Amazon's with "
        "`?endpoint=https://s3.example` or `https://{bucket}.s3.example`. Empty: below the data folder.",
    )

    # Broker
    queue_type: Literal["quorum", "classic"] = Field(
        "quorum", description="Type of work and delay queues. `classic` for a broker without quorum queues."
    )
    declare_topology: bool = Field(
        True,
        description="Whether processes declare exchanges and queues. `false` for accounts that may not.",
    )
    account_passwords: Annotated[SecretStr, AfterValidator(checks.passwords)] = Field(
        SecretStr(""),
        description="For `perennial services accounts`: `worker=secret,web=secret`. Others are random.",
    )
    worker_concurrency: int = Field(4, ge=1, description="Pool processes of a worker, as cores and memory permit.")

    # Retries
    retry_timeout_ms: int = Field(
        5_000,
        ge=1,
        description="First retry delay in ms, doubled each time. With RETRY_MAX, it says how long an outage may last. "
        "Also the first pause while a receiver of events or a service of cover art is away.",
    )
    retry_max: int = Field(5, ge=0, description="Retries after the first run. The sender's values win.")

    dead_max_letters: int = Field(
        0,
        ge=0,
        description="Dead letters that each dead set keeps: a packer exports and drops the oldest others, for a "
        "broker with a small disk. 0: all.",
    )

    # Crawl and timer
    timer_timeout: float = Field(
        300.0, gt=0, description="Seconds of quiet before a domain is packed; less to find changes sooner."
    )
    user_agent: Annotated[str, AfterValidator(checks.user_agent)] = Field(
        f"Perennial/0.1 (+{EXAMPLE_CONTACT})",
        description="Sent with every request, with a web page or mail address at which owners of sites reach you.",
    )
    host_delay: float = Field(
        1.0, ge=0, description="Seconds between two requests to one host, unless robots.txt requires more."
    )
    host_concurrency: int = Field(
        8, ge=1, description="Requests at the same time to a host without a delay; with a delay, one."
    )
    allow_private_hosts: Annotated[Commas[str], AfterValidator(checks.each(checks.host_or_network))] = Field(
        (),
        description="Hosts (`host`, `host:port`) or CIDR ranges of your own network, whose addresses need not be "
        "public.",
    )
    allow_ports: Commas[int] = Field(
        (), description="Ports that redirects may lead to, besides 80, 443 and the port of the start URL."
    )
    response_timeout: float = Field(
        30.0,
        gt=0,
        description="Seconds for a whole response of a site, the archive or MusicBrainz's web service.",
    )
    max_body_bytes: int = Field(
        5_000_000,
        gt=0,
        description="Bytes of a page after decompression; its parser holds 40 times as much.",
    )
    max_pages: int = Field(20_000, gt=0, description="Pages of one crawl of a site without a limit of its own.")
    soft_404_check: bool = Field(
        True,
        description="Whether each crawl requests one page that cannot exist, to recognise error pages. `false` where "
        "the site's owner watches such requests.",
    )
    site_secrets: Annotated[SecretStr, AfterValidator(checks.secrets)] = Field(
        SecretStr(""),
        description="Secrets of sites: a JSON object, or the path of a file with one, which is read at each use.",
    )

    # Cover art
    event_art_exchange: Annotated[str, AfterValidator(checks.exchange)] = Field(
        "event-art-archive",
        description="Exchange of event art messages, which begins the names of its queues. Empty: not served.",
    )
    art_retry_ms: int = Field(
        14_400_000,
        ge=1,
        le=LONGEST_DELAY_MS,
        description="Milliseconds that a failed art message waits: exactly the TTL of an existing retry queue. A "
        "failed event waits a quarter for each run so far.",
    )
    art_retry_max: int = Field(
        4,
        ge=0,
        description="Retries of an art message without `mb-retries`. With ART_RETRY_MS, it says how long an outage "
        "may last.",
    )
    art_window: float = Field(
        10.0,
        ge=0,
        le=3_600,
        description="Seconds in which equal art messages become one. 0: none do.",
    )
    archive_url: Annotated[str, AfterValidator(checks.archive_url)] = Field(
        "https://{bucket}.s3.us.archive.org/{file}",
        description="A file in the archive's S3 interface. `{bucket}` is part of the host or of the path.",
    )
    archive_public_url: Annotated[str, AfterValidator(_HTTP)] = Field(
        "https://archive.org",
        description="The archive's public URL, with `/metadata/` and `/download/` below it.",
    )
    archive_keys: ArchiveKeys = Field(SecretStr(""), description="Keys of the archive's account: `access:secret`.")
    event_art_keys: ArchiveKeys = Field(SecretStr(""), description="Those for event art. Empty: ARCHIVE_KEYS.")
    musicbrainz_url: Annotated[SecretStr, AfterValidator(checks.postgresql_url)] = Field(
        SecretStr(""),
        description="MusicBrainz's database, which is only read: `postgresql://user:password@host/database`.",
    )
    art_event_queue_url: Annotated[SecretStr, AfterValidator(checks.postgresql_url)] = Field(
        SecretStr(""),
        description="The database with `artwork_indexer.event_queue`, by a role that may write there. Empty: not read.",
    )
    art_event_timeout: float = Field(
        7_200.0,
        gt=0,
        description="Seconds without a run after which an event's message counts as lost, while its queue is empty.",
    )
    musicbrainz_ws_url: Annotated[str, AfterValidator(_HTTP)] = Field(
        "https://musicbrainz.org/ws/2", description="MusicBrainz's web service."
    )

    # Search
    replicas: int = Field(
        2,
        ge=1,
        description="Searchers that have each pack. Any but one of them may die.",
    )
    heartbeat: float = Field(
        2.0,
        gt=0,
        description="Seconds between heartbeats of a searcher, which is gone after three missed ones. More where a "
        "machine pauses for longer.",
    )
    searcher_disk_mb: int = Field(
        4_000,
        ge=1,
        description="MB (2^20 bytes) of packs that one searcher keeps.",
    )
    packer_disk_mb: int = Field(
        2_000,
        ge=0,
        description="MB (2^20 bytes) of former packs in one data folder, so that packers fetch only what has "
        "changed. 0: none.",
    )
    searcher_processes: int = Field(
        0,
        ge=0,
        description="Processes of one searcher, each for one query at a time. 0: one more than the cores.",
    )

    # Notifications
    webhook_url: Annotated[SecretStr, AfterValidator(_HTTP)] = Field(
        SecretStr(""),
        description="URL to which workers POST events; it may be in your network.",
    )
    webhook_secret: Annotated[SecretStr, AfterValidator(checks.token)] = Field(
        SecretStr(""),
        description="Key of the events' signature: 16 characters or more.",
    )
    smtp_url: Annotated[SecretStr, AfterValidator(checks.smtp_url)] = Field(
        SecretStr(""),
        description="Mail server for events: `smtps://user:password@host`, `smtp+starttls://…`, or `smtp://host` "
        "without TLS and login.",
    )
    mail_from: Annotated[str, AfterValidator(checks.mail_address)] = Field("", description="Sender of the mails.")
    mail_to: Annotated[Commas[str], AfterValidator(checks.each(checks.mail_address))] = Field(
        (), description="Recipients of the mails, with commas between."
    )

    # Web, Flower and logs
    web_rate_limit: Annotated[str, AfterValidator(checks.rate_limit)] = Field(
        "600/minute",
        description="Searches and suggestions of one address, as `<number>/<second|minute|hour>`.",
    )
    forwarded_allow_ips: Annotated[Commas[str], AfterValidator(checks.each(checks.network))] = Field(
        ("127.0.0.1", "::1"),
        description="Proxies (addresses, CIDR ranges or `*`) whose X-Forwarded-For names the visitor. Visitors "
        "behind another one share one rate limit.",
    )
    web_cors_origins: Annotated[Commas[str], AfterValidator(checks.each(checks.origin))] = Field(
        (),
        description="Origins (`https://site.example`), or `*`, whose pages may use the JSON API and the search box.",
    )
    web_operator_token: Annotated[SecretStr, AfterValidator(checks.token)] = Field(
        SecretStr(""),
        description="Token of the operators' API: 16 characters or more. Empty: its addresses answer 404.",
    )
    ops_password: Annotated[SecretStr, AfterValidator(checks.password_hash)] = Field(
        SecretStr(""),
        description="Hash, by `perennial password`, of the operators' password on `/ops`.",
    )
    ops_read_password: Annotated[SecretStr, AfterValidator(checks.password_hash)] = Field(
        SecretStr(""), description="Hash of a second password, to read `/ops` and not act."
    )
    ops_user_header: Annotated[str, AfterValidator(checks.field_name)] = Field(
        "",
        description="HTTP field with the user's name, set by an authenticating proxy of FORWARDED_ALLOW_IPS.",
    )
    ops_actors: Commas[str] = Field(
        (), description="Names in OPS_USER_HEADER that may act, or `*`. All others may read."
    )
    web_address: Annotated[str, AfterValidator(checks.address)] = Field(
        "127.0.0.1:8000", description="Address and port that the search page binds to."
    )
    flower_address: Annotated[str, AfterValidator(checks.address)] = Field(
        "127.0.0.1:5555", description="Address and port that Flower binds to."
    )
    flower_basic_auth: Annotated[SecretStr, AfterValidator(checks.login)] = Field(
        SecretStr(""), description="`user:password` of Flower. Empty: random, kept in the data folder."
    )

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Lowest severity that is logged."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Form of log lines: for people, or one JSON object a line."
    )
    otel_exporter_otlp_endpoint: str = Field(
        "",
        description="URL of an OpenTelemetry collector (OTLP over HTTP), for `perennial[traces]`. The SDK reads "
        "other variables `OTEL_…`.",
    )
    sentry_dsn: Annotated[SecretStr, AfterValidator(_HTTP)] = Field(
        SecretStr(""),
        description="DSN of a Sentry project, for `perennial[sentry]`. The SDK reads other variables `SENTRY_…`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_data_dir_by_name(cls, values: dict[str, Any]) -> dict[str, Any]:
        # `populate_by_name` would do this too, but it would also read an unrelated DATA_DIR from the environment.
        named = {"PERENNIAL_DATA_DIR": values["data_dir"]} if "data_dir" in values else {}
        return {**values, **named}

    @field_validator("*", mode="before")
    @classmethod
    def _read_secret_file(cls, value: Any, info: ValidationInfo) -> Any:
        # Not by the source itself: only an error of a validator is reported with the name of its setting.
        return value.read(str(info.field_name).upper()) if isinstance(value, checks.SecretFile) else value

    @model_validator(mode="after")
    def _check_receivers(self) -> Settings:
        if self.webhook_url.get_secret_value() and not self.webhook_secret.get_secret_value():
            raise ValueError("WEBHOOK_URL without WEBHOOK_SECRET: the receiver could not tell events from forgeries")
        if self.smtp_url.get_secret_value() and not (self.mail_from and self.mail_to):
            raise ValueError("SMTP_URL without MAIL_FROM and MAIL_TO: expected the addresses of the mails")
        return self

    @model_validator(mode="after")
    def _check_longest_delay(self) -> Settings:
        # 31 doublings of one millisecond exceed the limit already.
        if self.retry_max and self.retry_timeout_ms << min(self.retry_max - 1, 31) > LONGEST_DELAY_MS:
            raise ValueError(
                f"RETRY_TIMEOUT_MS {self.retry_timeout_ms} and RETRY_MAX {self.retry_max}: the last delay would be "
                f"{self.retry_timeout_ms} * 2^{self.retry_max - 1} ms, and RabbitMQ waits "
                f"{LONGEST_DELAY_MS} ms (24.3 days) at most"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments first, then the environment with the files of secrets, and no settings file."""
        del env_settings, dotenv_settings, file_secret_settings
        return init_settings, _EnvironmentAndFiles(settings_cls)

    @property
    def lacks_contact(self) -> bool:
        """Whether the User-Agent still names the example's contact."""
        return EXAMPLE_CONTACT in self.user_agent

    @property
    def has_operators(self) -> bool:
        """Whether there is a way to use the operations page or the operators' API."""
        secrets = (self.ops_password, self.ops_read_password, self.web_operator_token)
        return bool(self.ops_user_header or any(secret.get_secret_value() for secret in secrets))

    @property
    def services_file(self) -> Path:
        """Where `perennial services up` writes the URLs of the private services, as JSON."""
        return self.data_dir / "services" / "state.json"

    def private_urls(self) -> dict[str, str]:
        """Return `broker_url`, `redis_url` and `broker_api_url` of the private services; empty if they never ran.

        A damaged file is as a missing one: `perennial services up` writes it again.
        """
        try:
            urls = json.loads(self.services_file.read_text()).get("urls", {})
            return {key: str(value) for key, value in urls.items()}
        except (FileNotFoundError, ValueError, AttributeError):
            return {}

    @property
    def broker(self) -> str:
        """The broker's URL with its password: the setting, or the private broker's, or an address without a server."""
        return self.broker_url.get_secret_value() or self.private_urls().get("broker_url", "amqp://127.0.0.1:1//")

    @property
    def redis(self) -> str:
        """The Redis URL with its password: the setting, or the private Redis's, or an address without a server."""
        return self.redis_url.get_secret_value() or self.private_urls().get("redis_url", "redis://127.0.0.1:1/0")

    @property
    def broker_api(self) -> str:
        """The management API's URL, or an empty string."""
        given = self.broker_api_url.get_secret_value()
        private = "" if self.broker_url.get_secret_value() else self.private_urls().get("broker_api_url", "")
        return given or private

    @property
    def passwords_of_accounts(self) -> dict[str, str]:
        """The passwords of ACCOUNT_PASSWORDS by account."""
        return checks.parsed_passwords(self.account_passwords.get_secret_value())

    def secrets_of_sites(self) -> dict[str, str]:
        """Return the secrets of SITE_SECRETS by name; a file is read each time. Raises ValueError and OSError."""
        return checks.parsed_secrets(self.site_secrets.get_secret_value())

    @property
    def heartbeat_dir(self) -> Path:
        """Folder in which each Celery worker touches a file of its name every two seconds, while it is connected."""
        return self.data_dir / "heartbeats"

    @property
    def art_event_backoff(self) -> float:
        """Seconds that a failed event waits for each run so far: an hour, so that its last wait is ART_RETRY_MS."""
        return self.art_retry_ms / 4_000

    @property
    def art_exchanges(self) -> tuple[str, ...]:
        """Exchanges whose art messages are served; empty without MusicBrainz's database."""
        given = (COVER_ART_EXCHANGE, self.event_art_exchange) if self.musicbrainz_url.get_secret_value() else ()
        return tuple(exchange for exchange in given if exchange)

    @property
    def receivers(self) -> tuple[str, ...]:
        """The names of the receivers that get events, which are those of their queues."""
        given = {WEBHOOK: self.webhook_url, MAIL: self.smtp_url}
        return tuple(name for name, url in given.items() if url.get_secret_value())

    @property
    def flower_login_file(self) -> Path:
        """Where the randomly generated login of Flower is kept."""
        return self.data_dir / "flower-login"

    @property
    def flower_login(self) -> str:
        """`user:password` of Flower: given, or kept in a file; raises ValueError if that file has none, and OSError."""
        return self.flower_basic_auth.get_secret_value() or kept_login(self.flower_login_file)

    @property
    def store(self) -> str:
        """The object store's URL."""
        return self.store_url or (self.data_dir / "store").absolute().as_uri()


def misspelt_variables() -> dict[str, str]:
    """Return each variable of the environment that is no setting but nearly has the name of one, with that name."""
    secrets = [name for name, field in Settings.model_fields.items() if field.annotation is SecretStr]
    read = {str(field.validation_alias or name).upper() for name, field in Settings.model_fields.items()}
    read |= {f"{name.upper()}_FILE" for name in secrets}
    # OpenTelemetry reads many variables of its own, and the names of some are near that of our setting.
    others = (name for name in os.environ if name.upper() not in read and not name.startswith("OTEL_"))
    meant = {name: get_close_matches(name.upper(), read, n=1, cutoff=_MISSPELT) for name in others}
    return {name: matches[0] for name, matches in sorted(meant.items()) if matches}


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the settings of this process, read once."""
    return Settings()
