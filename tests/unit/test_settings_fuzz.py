"""Any text in any setting's variable gives valid settings, or one error that names the variable and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from app.cli.config import variable_of
from app.cli.errors import explained
from app.http.addresses import AddressPolicy
from config.settings import Settings

pytestmark = pytest.mark.unit

VARIABLES = sorted(variable_of(name, field) for name, field in Settings.model_fields.items())
SECRETS = [variable_of(name, field) for name, field in Settings.model_fields.items() if field.annotation is SecretStr]

#: What `os.environ` can hold: no NUL, and a byte that is not UTF-8 as a lone surrogate.
ANY_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.just("\udcff\udc80")
#: Texts that come close to values of one or another setting, or that a number or a path cannot have.
NEARLY = (
    *("nan", "inf", "-inf", "1e400", "-1", "0", "9" * 5_000, "1_0", "0x10", "٣", " 1 ", "true", "None", "[]", "{}"),
    *("http://[", "amqp://user:pass/word@host/", "amqp://host:99999999//", "redis://:x@h:port/", "https://é.example"),
    *("amqp://a//;http://b//", "s3://", "file:///", "file:///tmp/%zz", "http://{bucket}/{file}{", "unix://"),
    *(",", "a,b", "1,,2", "10.0.0.0/99", "*", "::1/129", "600/minute\n", "user:pa\nss", "a=b,=c", "x" * 5_000),
    *("/etc/passwd", "/etc/passwd/below", "/" + "x" * 300, "a\tb\r\nc", "\udcff", "\u202e", "💥" * 100),
)


def outcome(variable: str, text: str) -> str:
    """Return the printed error of settings with this variable; empty for valid settings, which are used."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(variable, text)
        try:
            valid = Settings()
        except ValidationError as error:
            explanation = explained(error)
            assert explanation is not None
            exit_code, lines = explanation
            assert exit_code == 2
            return "\n".join(lines)
    # What processes derive from their settings at once.
    assert all((valid.broker, valid.redis, valid.store))
    assert all(valid.passwords_of_accounts.values())
    assert all(valid.art_exchanges)
    AddressPolicy(valid.allow_private_hosts)
    return ""


def require_clear(variable: str, text: str) -> None:
    printed = outcome(variable, text)
    for line in printed.splitlines():
        assert variable in line, (variable, text[:80], printed)
    assert len(printed.splitlines()) <= max(1, text.count(",") + 1), (variable, text[:80], printed)
    assert len(printed) < 10_000


@settings(max_examples=300)
@given(st.sampled_from(VARIABLES), st.sampled_from(NEARLY) | ANY_TEXT)
@example("USER_AGENT", "٣")
@example("ACCOUNT_PASSWORDS", "web")
def test_any_text_in_any_variable_is_valid_or_one_clear_error(variable: str, text: str) -> None:
    require_clear(variable, text)


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("BROKER_URL", "amqp://user:word@host:port/", "BROKER_URL: expected amqp:// or amqps://, a host and a port"),
        ("BROKER_URL", "amqp://me:pa[ss@mq//", "BROKER_URL: expected amqp:// or amqps://, a host and a port; in "),
        ("REDIS_URL", "redis://[::::]:6379/0", "REDIS_URL: expected redis:// or rediss:// or unix://"),
        ("MUSICBRAINZ_URL", "postgresql://me:a]b@db/mb", "MUSICBRAINZ_URL: expected postgresql://user:password@host"),
        ("REDIS_URL", "localhost:6379", "REDIS_URL: expected redis:// or rediss:// or unix://"),
        ("ARCHIVE_PUBLIC_URL", "https://", "ARCHIVE_PUBLIC_URL: expected http:// or https://, a host and a port"),
        ("ARCHIVE_PUBLIC_URL", "https://a;https://b", "ARCHIVE_PUBLIC_URL: expected http:// or https://, a host"),
        ("BROKER_API_URL", "http://me:word@:15672/", "BROKER_API_URL: expected http:// or https://, a host"),
        ("ALLOW_PRIVATE_HOSTS", "true", "ALLOW_PRIVATE_HOSTS: 'true': expected `host`, `host:port` or a CIDR range"),
        ("ALLOW_PRIVATE_HOSTS", "a.example b", "ALLOW_PRIVATE_HOSTS: 'a.example b': expected `host`, `host:port` or a"),
        ("ALLOW_PRIVATE_HOSTS", "10.0.0.0/99", "ALLOW_PRIVATE_HOSTS: '10.0.0.0/99' does not appear to be an IPv4 or"),
        ("PERENNIAL_DATA_DIR", "/etc/passwd", "PERENNIAL_DATA_DIR: /etc/passwd is a file, and not a folder"),
        ("PERENNIAL_DATA_DIR", "/etc/passwd/x", "PERENNIAL_DATA_DIR: not a folder that can be used: Not a directory"),
        ("TIMER_TIMEOUT", "inf", "TIMER_TIMEOUT: Input should be a finite number"),
        ("USER_AGENT", "me\nX-Other: 1", "USER_AGENT: expected visible ASCII characters"),
        ("EVENT_ART_EXCHANGE", "x" * 250, "EVENT_ART_EXCHANGE: expected at most 200 bytes"),
        ("ART_RETRY_MS", "5000000000", "ART_RETRY_MS: Input should be less than or equal to 2100000000"),
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_read_and_not_when_it_is_used(
    variable: str, text: str, reason: str
) -> None:
    printed = outcome(variable, text)
    assert printed.startswith(reason)


def test_a_secret_is_the_content_of_its_file_without_the_newline_at_its_end(tmp_path: Path) -> None:
    secrets = {
        "BROKER_URL": "amqps://me:pass@mq//",
        "REDIS_URL": "rediss://app:pass@cache",
        "SITE_SECRETS": '{"wiki": "Bearer 5f1b0c"}',
        "ARCHIVE_KEYS": "access:hush4711",
        "MUSICBRAINZ_URL": "postgresql://reader:pass@db/musicbrainz",
    }
    with pytest.MonkeyPatch.context() as environment:
        for variable, text in secrets.items():
            (tmp_path / variable).write_text(f"{text}\n")
            environment.setenv(f"{variable}_FILE", str(tmp_path / variable))
        found = Settings()
    assert {name: getattr(found, name.lower()).get_secret_value() for name in secrets} == secrets


@pytest.mark.parametrize("variable", SECRETS)
def test_a_file_that_gives_no_secret_is_an_error_with_its_path_and_without_its_content(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing, empty, binary, good = (tmp_path / name for name in ("missing", "empty", "binary", "good"))
    empty.write_text("\n")
    binary.write_bytes(b"hush4711\xff")
    good.write_text("hush4711")
    wrong = {missing: "cannot be read: No such file or directory", tmp_path: "cannot be read: Is a directory"}
    for path, reason in {**wrong, empty: "is empty", binary: "is not UTF-8"}.items():
        printed = outcome(f"{variable}_FILE", str(path))
        assert printed == f"{variable}: the file of {variable}_FILE, {str(path)!r}, {reason}"
    monkeypatch.setenv(f"{variable}_FILE", str(good))
    assert outcome(variable, "mine") == f"{variable}: {variable} and {variable}_FILE are both set: remove one of them"
