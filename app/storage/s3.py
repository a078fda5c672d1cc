"""An object store in an S3 bucket, or on any S3-compatible server with conditional writes."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from app.errors import ObjectDamaged, ObjectNotFound, PreconditionFailed, StoreError
from app.storage.reading import in_parallel
from app.storage.store import Stat, StoredObject, check_key, fault_of

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

#: Seconds to connect.
CONNECT_TIMEOUT: Final = 3.0
#: Seconds without a byte from the server.
READ_TIMEOUT: Final = 8.0
#: Attempts of one request after connection errors, 5xx and throttling, with boto3's backoff between them. A request to
#: a server that hangs must end long before the time limit of its task, which would spend a retry.
ATTEMPTS: Final = 3
#: Connections in the pool.
CONNECTIONS: Final = 32

NOT_FOUND: Final = frozenset({"NoSuchKey", "404", "NotFound"})
#: 416: the object ends before the part.
BEYOND_END: Final = frozenset({"InvalidRange", "416"})
#: 412: the condition is not met. 409: another conditional write of the key is in progress.
CONFLICT: Final = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})


class S3Store:
    """Objects of one bucket below `prefix`. Credentials and region come from boto3's environment variables and files.

    Safe between threads and across a fork: each process creates its own client at first use. A server at `endpoint_url`
    is addressed by path, which needs no DNS name per bucket; by the host's name where that begins with `{bucket}.`.
    """

    #: A request to a distant server is mostly waiting.
    parallel_requests = 8

    def __init__(self, bucket: str, prefix: str = "", endpoint_url: str | None = None) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.endpoint_url = endpoint_url and endpoint_url.replace("{bucket}.", "", 1)
        self._style: Literal["auto", "path", "virtual"] = "path" if endpoint_url else "auto"
        if self.endpoint_url != endpoint_url:
            self._style = "virtual"
        self._lock = threading.Lock()
        self._process_client: tuple[int, S3Client] | None = None
        self.on_damage: Callable[[ObjectDamaged], None] | None = None

    def __repr__(self) -> str:
        return f"S3Store({self.bucket!r}, {self.prefix!r}, endpoint_url={self.endpoint_url!r})"

    def get(self, key: str) -> StoredObject:
        """Return the object; raises ObjectNotFound."""
        with self._errors_translated(key):
            response = self._client().get_object(Bucket=self.bucket, Key=self._name(key))
            # Not as a context manager, which yields the stream without botocore's errors.
            return StoredObject(response["Body"].read(), _unquoted(response["ETag"]))

    def get_part(self, key: str, start: int, size: int) -> bytes:
        """Return a part of the object; raises ObjectNotFound. See `ObjectStore.get_part`."""
        part = f"bytes={start}-{start + size - 1}"
        try:
            with self._errors_translated(key):
                response = self._client().get_object(Bucket=self.bucket, Key=self._name(key), Range=part)
                return response["Body"].read()
        except StoreError as error:
            if isinstance(error.__cause__, ClientError) and error.__cause__.response["Error"]["Code"] in BEYOND_END:
                return b""
            raise

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write the whole object and return its ETag; raises PreconditionFailed. See `ObjectStore.put`."""
        condition: dict[str, Any] = {}
        if if_match is not None:
            condition["IfMatch"] = f'"{if_match}"'
        if if_absent:
            condition["IfNoneMatch"] = "*"
        try:
            with self._errors_translated(key):
                response = self._client().put_object(Bucket=self.bucket, Key=self._name(key), Body=data, **condition)
        except ObjectNotFound as error:
            raise PreconditionFailed(f"{key}: no object, not one with ETag {if_match}") from error
        except PreconditionFailed as refused:
            # boto3 repeats a request whose answer was lost, and the condition of a write does not hold after itself.
            cause = refused.__cause__
            if isinstance(cause, ClientError) and cause.response["ResponseMetadata"]["RetryAttempts"]:
                with suppress(ObjectNotFound):
                    stored = self.get(key)
                    if stored.data == data:
                        return stored.etag
            raise
        return _unquoted(response["ETag"])

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Write objects, several at a time. See `ObjectStore.put_all`."""
        # One page of a host with a delay needs no thread.
        threads = min(self.parallel_requests, max(1, len(objects)))
        deque(in_parallel(lambda each: self.put(*each), objects.items(), threads=threads), maxlen=0)

    def stat(self, key: str) -> Stat:
        """Return the object's entry as `list` yields it; raises ObjectNotFound."""
        with self._errors_translated(key):
            response = self._client().head_object(Bucket=self.bucket, Key=self._name(key))
        return _stat(key, response["ETag"], response["ContentLength"], response["LastModified"])

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose key begins with `prefix`, in key order, requesting 1000 at a time."""
        for page in self._pages(prefix):
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(self.prefix)
                if not fault_of(key):
                    yield _stat(key, entry["ETag"], entry["Size"], entry["LastModified"])

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield key and version, which is the ETag, of every object whose key begins with `prefix`."""
        return ((stat.key, stat.version) for stat in self.list(prefix))

    def list_folders(self, prefix: str) -> Iterator[str]:
        """Yield the next segment of the keys that go on after it, requesting 1000 at a time. See `ObjectStore`."""
        for page in self._pages(prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                folder = entry["Prefix"].removeprefix(self.prefix).removesuffix("/")
                if not fault_of(folder):
                    yield folder.removeprefix(prefix)

    def _pages(self, prefix: str, **options: Any) -> Iterator[ListObjectsV2OutputTypeDef]:
        with self._errors_translated(prefix):
            pages = self._client().get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix, **options)

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Remove the object; raises PreconditionFailed. A missing object is no error. See `ObjectStore.delete`."""
        condition: dict[str, Any] = {}
        if if_match is not None:
            # Some servers ignore the condition of a deletion, so it is compared before, too.
            try:
                present = self.stat(key).etag
            except ObjectNotFound:
                return
            if present != if_match:
                raise PreconditionFailed(f"{key}: ETag is {present}, not {if_match}")
            condition["IfMatch"] = f'"{if_match}"'
        with suppress(ObjectNotFound), self._errors_translated(key):
            self._client().delete_object(Bucket=self.bucket, Key=self._name(key), **condition)

    def create(self) -> bool:
        """Create the bucket and return True; False if it exists and is accessible. Raises StoreError."""
        try:
            with self._errors_translated(""):
                self._client().head_bucket(Bucket=self.bucket)
        except ObjectNotFound:
            client = self._client()
            region = client.meta.region_name
            # Amazon requires a location for every region but its first; other servers have no regions.
            needs_location = region != "us-east-1" and not self.endpoint_url
            location: dict[str, Any] = {"LocationConstraint": region}
            options: dict[str, Any] = {"CreateBucketConfiguration": location} if needs_location else {}
            with self._errors_translated(""):
                client.create_bucket(Bucket=self.bucket, **options)
            return True
        return False

    def _name(self, key: str) -> str:
        return self.prefix + check_key(key)

    def _client(self) -> S3Client:
        with self._lock:
            if self._process_client is None or self._process_client[0] != os.getpid():
                config = Config(
                    signature_version="s3v4",
                    s3={"addressing_style": self._style},
                    retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
                    connect_timeout=CONNECT_TIMEOUT,
                    read_timeout=READ_TIMEOUT,
                    max_pool_connections=CONNECTIONS,
                    # Some servers do not support the newer checksum trailers; TLS and ETags already protect the bytes.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                )
                # A new session, because creating clients from boto3's shared session is not thread-safe.
                session = boto3.session.Session()
                client = session.client("s3", endpoint_url=self.endpoint_url, config=config)
                self._process_client = (os.getpid(), client)
            return self._process_client[1]

    @contextmanager
    def _errors_translated(self, key: str) -> Iterator[None]:
        name = f"s3://{self.bucket}/{self.prefix}{key}"
        try:
            yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in NOT_FOUND:
                raise ObjectNotFound(f"{name}: no such object") from error
            if code in CONFLICT:
                raise PreconditionFailed(f"{name}: another writer changed it or is writing it: {error}") from error
            raise StoreError(f"{name}: {error}") from error
        except BotoCoreError as error:
            raise StoreError(f"{name}: {error}") from error


def _stat(key: str, etag: str, size: int, modified: datetime) -> Stat:
    return Stat(key, _unquoted(etag), size, modified, version=_unquoted(etag))


def _unquoted(etag: str) -> str:
    return etag.strip('"')
