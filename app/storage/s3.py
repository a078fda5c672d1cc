"""An object store in an S3 bucket, or in any server that speaks S3 with conditional writes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from app.errors import ObjectNotFound, PreconditionFailed, StoreError
from app.storage.store import Stat, StoredObject, check_key

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

CONNECT_TIMEOUT: Final = 5.0
#: Seconds without a byte from the server.
READ_TIMEOUT: Final = 60.0
#: Attempts of one request, on connection errors, 5xx and throttling, with boto3's own back-off between them.
ATTEMPTS: Final = 4
CONNECTIONS: Final = 32

NOT_FOUND: Final = frozenset({"NoSuchKey", "404", "NotFound"})
#: 412 says that the condition did not hold, 409 that another conditional write of the key was under way.
LOST: Final = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})


class S3Store:
    """Objects of one bucket below `prefix`. Keys and region come by boto3's own variables and files.

    Safe between threads, and across a fork: each process makes its own client at first use. With `endpoint_url`, a
    server other than Amazon's is addressed by path, which needs no DNS name for each bucket.
    """

    #: Reads worth having under way at once: a request to a distant server is mostly waiting.
    parallel_reads: Final = 8

    def __init__(self, bucket: str, prefix: str = "", endpoint_url: str | None = None) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.endpoint_url = endpoint_url
        self._lock = threading.Lock()
        self._made: tuple[int, S3Client] | None = None

    def __repr__(self) -> str:
        return f"S3Store({self.bucket!r}, {self.prefix!r}, endpoint_url={self.endpoint_url!r})"

    def get(self, key: str) -> StoredObject:
        """Return the object; raises ObjectNotFound."""
        with self._translated(key):
            answer = self._client().get_object(Bucket=self.bucket, Key=self._name(key))
            with answer["Body"] as body:
                return StoredObject(body.read(), _unquoted(answer["ETag"]))

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Write the object whole and return its ETag; raises PreconditionFailed. See `ObjectStore.put`."""
        condition: dict[str, Any] = {}
        if if_match is not None:
            condition["IfMatch"] = f'"{if_match}"'
        if if_absent:
            condition["IfNoneMatch"] = "*"
        try:
            with self._translated(key):
                answer = self._client().put_object(Bucket=self.bucket, Key=self._name(key), Body=data, **condition)
        except ObjectNotFound as error:
            raise PreconditionFailed(f"{key}: there is no object, not one of ETag {if_match}") from error
        return _unquoted(answer["ETag"])

    def stat(self, key: str) -> Stat:
        """Return what a listing would tell of one object; raises ObjectNotFound."""
        with self._translated(key):
            answer = self._client().head_object(Bucket=self.bucket, Key=self._name(key))
        return Stat(key, _unquoted(answer["ETag"]), answer["ContentLength"], answer["LastModified"])

    def list(self, prefix: str) -> Iterator[Stat]:
        """Yield every object whose key begins with `prefix`, in key order, a page of 1000 at a time."""
        with self._translated(prefix):
            pages = self._client().get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix):
                for found in page.get("Contents", ()):
                    key = found["Key"].removeprefix(self.prefix)
                    yield Stat(key, _unquoted(found["ETag"]), found["Size"], found["LastModified"])

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""
        with self._translated(key):
            self._client().delete_object(Bucket=self.bucket, Key=self._name(key))

    def create(self) -> bool:
        """Make the bucket and return True; False if it is there already, and ours. Raises StoreError."""
        client = self._client()
        region = client.meta.region_name
        # Amazon wants every region named but its first, and other servers have none.
        elsewhere = region != "us-east-1" and not self.endpoint_url
        try:
            with self._translated(""):
                client.head_bucket(Bucket=self.bucket)
        except ObjectNotFound:
            place: dict[str, Any] = {"CreateBucketConfiguration": {"LocationConstraint": region}} if elsewhere else {}
            with self._translated(""):
                client.create_bucket(Bucket=self.bucket, **place)
            return True
        return False

    def _name(self, key: str) -> str:
        return self.prefix + check_key(key)

    def _client(self) -> S3Client:
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), _connect(self.endpoint_url))
            return self._made[1]

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            raise _named(error, f"s3://{self.bucket}/{self.prefix}{key}") from error
        except (BotoCoreError, HTTPClientError) as error:
            raise StoreError(f"s3://{self.bucket}/{self.prefix}{key}: {error}") from error


def _named(error: ClientError, name: str) -> StoreError:
    code = error.response.get("Error", {}).get("Code", "")
    if code in NOT_FOUND:
        return ObjectNotFound(f"{name}: no such object")
    if code in LOST:
        return PreconditionFailed(f"{name}: somebody else wrote it, or is writing it: {error}")
    return StoreError(f"{name}: {error}")


def _connect(endpoint_url: str | None) -> S3Client:
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if endpoint_url else "auto"},
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        max_pool_connections=CONNECTIONS,
        # Other servers do not all know the newer checksum trailers, and TLS and ETags guard the bytes already.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # A session of its own: boto3's shared one is not safe to make clients from in several threads at once.
    return boto3.session.Session().client("s3", endpoint_url=endpoint_url, config=config)


def _unquoted(etag: str) -> str:
    return etag.strip('"')
