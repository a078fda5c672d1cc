"""Checks of settings that a type cannot express; each raises ValueError with what is expected, and no password."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

#: The longest name of an exchange: AMQP allows 255 bytes for those of its queues, which have longer names.
_MAX_EXCHANGE = 200

#: What the value of an HTTP field may be: visible ASCII characters, and spaces within (RFC 9110, 5.5).
VISIBLE_ASCII = r"[!-~]([ -~]*[!-~])?"

_MAX_PORT = 65_535
#: Host and port of a URL, below its login: a name, an address, or an IPv6 address in brackets; either may be missing.
_HOST_AND_PORT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:;\[\]]*)(?::([0-9]{1,5}))?")
#: The same without a URL, where both are needed: a process binds to it.
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
#: A host of one's own network, with or without a port; an IPv6 address without a port needs no brackets.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?|[0-9a-fA-F:.]+")
#: The endpoint of an S3 server, as boto3 accepts it.
_ENDPOINT = re.compile(
    r"https?://(\{bucket\}\.)?([A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.?|\[[0-9a-fA-F:.]+\])(:[0-9]+)?(/[^?#{}\s]*)?"
)

_Text = TypeVar("_Text", bound=str | SecretStr)


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A file with the value of a setting; `is_alone` is false where the setting's own variable is set, too."""

    path: str
    is_alone: bool

    def read(self, variable: str) -> str:
        """Return the content without the newline at its end. Raises ValueError, which never quotes the content."""
        if not self.is_alone:
            raise ValueError(f"{variable} and {variable}_FILE are both set: remove one of them")
        try:
            text = Path(self.path).read_text(encoding="utf-8").removesuffix("\n")
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        except ValueError:  # Its text would quote the content.
            reason = "is not UTF-8"
        else:
            if text:
                return text
            reason = "is empty"
        raise ValueError(f"the file of {variable}_FILE, {self.path!r}, {reason}")


def matching(pattern: str, expected: str) -> Callable[[_Text], _Text]:
    """Return a check of a text, or of a secret, that is empty or matches a pattern as a whole."""
    compiled = re.compile(pattern)

    def check(value: _Text) -> _Text:
        text = text_of(value)
        if text and not compiled.fullmatch(text):
            # A secret is not quoted.
            found = "" if isinstance(value, SecretStr) else f", not {text[:80]!r}"
            raise ValueError(f"expected {expected}{found}")
        return value

    return check


def text_of(value: str | SecretStr) -> str:
    """Return a text, or that of a secret."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def url_of(*schemes: str, several: bool = False) -> Callable[[_Text], _Text]:
    """Return a check of a URL for its scheme, host and port, or of `several` with semicolons between them."""
    expected = " or ".join(f"{scheme}://" for scheme in schemes)

    def check(value: _Text) -> _Text:
        for url in text_of(value).split(";") if several else [text_of(value)]:
            scheme, _, rest = url.partition("://")
            host_and_port = rest.rpartition("@")[2].partition("/")[0].partition("?")[0]
            found = _HOST_AND_PORT.fullmatch(host_and_port)
            # A socket has a path in place of a host.
            has_host = found and (found[1] or scheme == "unix") and int(found[2] or 0) <= _MAX_PORT
            if url and not (scheme in schemes and rest.isprintable() and has_host):
                raise ValueError(f"expected {expected}, a host and a port")
            try:
                urlsplit(url)
            except ValueError:  # No process could read it, such as one with a bracket in its password.
                raise ValueError(f"expected {expected}, a host and a port{_BRACKETS}") from None
        return value

    return check


#: How a URL has what only an address of IPv6 may have.
_BRACKETS = "; in a password, [ and ] are %5B and %5D"


def address(value: str) -> str:
    """Check a host, or an address of one, with a port."""
    found = _ADDRESS.fullmatch(value)
    if not found or int(found[1]) > _MAX_PORT:
        raise ValueError(f"expected host:port, such as 127.0.0.1:8000, not {value[:80]!r}")
    return value


def host_and_port(value: str) -> tuple[str, int]:
    """Return the host and the port of a checked address."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)


user_agent = matching(VISIBLE_ASCII, "visible ASCII characters and spaces")

#: A bearer token (RFC 6750 section 2.1) that cannot be guessed soon.
token = matching(r"[A-Za-z0-9._~+/-]{16,}=*", "16 or more letters, digits and -._~+/")

#: The keys of the archive's account. An HTTP library would quote the whole header in its error.
archive_keys = matching(r"[!-9;-~]+:[!-9;-~]+", "access:secret, of visible ASCII characters without colon and space")

#: A hashed password: nothing else may be in the environment of a process.
password_hash = matching(
    r"\$argon2id\$v=\d+\$m=\d+,t=\d+,p=\d+\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+",
    "a hash that `perennial password` prints, which begins with $argon2id$",
)

#: The name of an HTTP field (RFC 9110, 5.1).
field_name = matching(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "the name of an HTTP field, such as X-Forwarded-User")

#: An address of a mail, in ASCII and without a name.
mail_address = matching(r"[!#-'*+/-9=?A-Z^-~.-]+@[A-Za-z0-9.\[\]:-]+", "an address such as operator@site.example")

#: A user without colon, and a password. Flower would accept an empty login from every visitor that sends one.
LOGIN = r"[^:\s]+:[^\r\n]+"
login = matching(LOGIN, "user:password")

origin = matching(r"\*|https?://[A-Za-z0-9.\[\]:-]+", "http(s)://host[:port] or *")

rate_limit = matching(r"[1-9][0-9]{0,8}/(second|minute|hour)", "<number>/<second|minute|hour>, such as 600/minute")

_store = matching(r"file:///.*|s3://[^/?]+(/[^?]*)?", "file:///folder or s3://bucket[/prefix][?endpoint=https://host]")

archive_url = matching(r"https?://.*\{bucket\}.*\{file\}", "http(s)://, {bucket} within it and {file} at its end")


def store_url(value: str) -> str:
    """Check the URL of a folder, or of a bucket with the endpoint of its server, which has no login."""
    store, found, endpoint = value.partition("?endpoint=")
    _store(store)
    url_of("http", "https")(endpoint)
    if found and not (store.startswith("s3://") and _ENDPOINT.fullmatch(endpoint)):
        expected = "after s3://bucket?endpoint= one http(s)://host[:port] without a login"
        raise ValueError(f"expected {expected}: its keys are in AWS_ACCESS_KEY_ID and others")
    return value


def each(check: Callable[[str], str]) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return a check of several texts."""
    return lambda values: tuple(map(check, values))


def split_commas(value: Any) -> Any:
    """Return the texts between the commas of a variable's text; any other value as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def network(entry: str) -> str:
    """Check an address or a CIDR range, or `*`."""
    if entry != "*":
        ip_network(entry, strict=False)  # A ValueError names the entry.
    return entry


def host_or_network(entry: str) -> str:
    """Check a CIDR range, or a host with or without a port. A word such as `true` would allow no host at all."""
    if "/" in entry:
        return network(entry)
    if not _HOST.fullmatch(entry) or entry.lower() in {"true", "yes", "on", "all"}:
        raise ValueError(f"{entry!r}: expected `host`, `host:port` or a CIDR range such as 10.0.0.0/8")
    return entry


def smtp_url(value: SecretStr) -> SecretStr:
    """Check a URL of a mail server, whose login is sent over TLS only."""
    url = url_of("smtp", "smtp+starttls", "smtps")(value).get_secret_value()
    scheme, _, rest = url.partition("://")
    if scheme == "smtp" and "@" in rest:
        raise ValueError("a login needs TLS: expected smtps:// or smtp+starttls://")
    if not unquote(rest).isascii():
        raise ValueError("expected a login of ASCII characters")
    return value


def postgresql_url(value: SecretStr) -> SecretStr:
    """Check a URL of PostgreSQL, which may name several hosts with commas between them, or none."""
    url = value.get_secret_value()
    scheme, _, rest = url.partition("://")
    login_and_hosts = re.split("[/?]", rest, maxsplit=1)[0]
    login, _, hosts = login_and_hosts.rpartition("@")
    database = rest[len(login_and_hosts) :].partition("?")[0]
    found = [_HOST_AND_PORT.fullmatch(host) for host in hosts.split(",")]
    valid = all(each and int(each[2] or 0) <= _MAX_PORT for each in found) and "@" not in login + database
    if url and (scheme not in ("postgresql", "postgres") or not rest.isprintable() or not valid):
        raise ValueError("expected postgresql://user:password@host/database, with a / or @ of a password as %2F or %40")
    if not {"[", "]"}.isdisjoint(login):
        raise ValueError(f"expected postgresql://user:password@host/database{_BRACKETS}")
    if re.search("[?%]", rest):
        # Few URLs have options or escapes, and few processes need psycopg: 0.15 s of CPU.
        from psycopg import ProgrammingError, conninfo

        try:
            conninfo.conninfo_to_dict(url)
        except ProgrammingError:
            # libpq's own text may quote the password.
            raise ValueError("an option after ? that PostgreSQL's clients do not know, or a % that is no %XX") from None
    return value


def folder(path: Path) -> Path:
    """Check that a folder can be made or used at `path`."""
    try:
        status = os.stat(path)  # noqa: PTH116 - Path.stat() would not be shorter.
    except FileNotFoundError:
        return path
    except OSError as error:
        raise ValueError(f"not a folder that can be used: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is a file, and not a folder")
    return path


def secrets(value: SecretStr) -> SecretStr:
    """Check a JSON object of secrets by name, or that the file of this path has one."""
    try:
        parsed_secrets(value.get_secret_value())
    except OSError as error:
        raise ValueError(f"neither a JSON object nor a file that can be read: {error.strerror}") from None
    return value


def parsed_secrets(text: str) -> dict[str, str]:
    """Return secrets by name, from a JSON object or from the file of this path; raises ValueError and OSError."""
    if not text:
        return {}
    if not text.lstrip().startswith("{"):
        text = Path(text).read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except ValueError:  # Its text would quote the secrets.
        raise ValueError("expected a JSON object of names and values") from None
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object of names and values")  # noqa: TRY004 - pydantic expects ValueError.
    for name, secret in found.items():
        # An HTTP library would quote the whole header in its error.
        if not isinstance(secret, str) or not re.fullmatch(VISIBLE_ASCII, secret):
            raise ValueError(f"the secret {name!r}: expected visible ASCII characters and spaces")
    return found


def passwords(value: SecretStr) -> SecretStr:
    """Check a list that `parsed_passwords` reads."""
    parsed_passwords(value.get_secret_value())
    return value


def parsed_passwords(text: str) -> dict[str, str]:
    """Return the passwords of a list `account=password`, separated by commas, by account; raises ValueError."""
    found = {}
    for number, entry in enumerate(text.split(",") if text else (), 1):
        name, _, password = entry.strip().partition("=")
        if not name or not password:  # Without its text, which may be the rest of a password.
            raise ValueError(f"entry {number}: expected account=password")
        found[name] = password
    return found


def exchange(name: str) -> str:
    """Check the name of an exchange whose queues have longer names."""
    if not name.isprintable() or len(name.encode(errors="replace")) > _MAX_EXCHANGE:
        raise ValueError(f"expected at most {_MAX_EXCHANGE} bytes of printable characters")
    return name
