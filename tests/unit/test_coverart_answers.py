"""What answers of the archive and of the web service mean, and which settings of them are refused, without a server."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr, ValidationError

from app.coverart.archive import Archive, ArchiveResponse, PublicArchive
from app.coverart.project import COVER_ART
from app.coverart.webservice import WebService
from app.errors import (
    ArchiveDenied,
    ArchiveError,
    ArchiveNotFound,
    ArchiveRefused,
    ArchiveUnavailable,
    WebServiceError,
    WebServiceUnavailable,
)
from app.http.response import Response
from config.settings import Settings

pytestmark = pytest.mark.unit

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
GATEWAYS_PAGE = "<style>@media (prefers-color-scheme: dark) {}</style><p>What you look for cannot be retrieved.</p>"
TITLED_PAGE = "<!doctype html><html lang='en'><head><title>Bad Gateway &amp; more</title></head><p>Sorry</p></html>"


def answer(status: int, body: str = "", content_type: str = "text/html", **headers: str) -> Response:
    return Response("http://archive.test/", status, {"content-type": content_type, **headers}, body.encode())


def s3(status: int, code: str, message: str = "", resource: str = "") -> Response:
    xml = f"<Error><Code>{code}</Code><Message>{message}</Message><Resource>{resource}</Resource></Error>"
    return answer(status, xml, "application/xml")


def client(response: Response) -> Any:
    """Return a client that gets this response to every request."""
    return SimpleNamespace(send=lambda *_, **__: response)


@pytest.mark.parametrize("quoted", ['k<&"/', "k&lt;&amp;&quot;/", 'k<&\\"/', "k%3C%26%22%2F"])
def test_an_error_of_the_archive_has_no_key_in_whichever_form_a_server_quotes_it(quoted: str) -> None:
    error = ArchiveResponse(answer(403, f"Bad key {quoted}!")).error("PUT /item", secrets=['k<&"/'])
    assert str(error) == "PUT /item: 403: Bad key ********!"


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("/other", "mbid-a.s3.us.archive.org"),
        ("https://ia800.us.archive.org/other", "ia800.us.archive.org"),
        ("https://IA800.US.Archive.org/other", "ia800.us.archive.org"),
        ("http://ia800.us.archive.org/other", None),
        ("https://ia800.us.archive.org.test/other", None),
        ("https://test\\.us.archive.org/other", None),
        ("https://ia800.other.archive.org/other", None),
        ("https://[", None),
    ],
)
def test_a_redirect_leads_to_the_archive_if_the_host_that_would_get_the_keys_is_one_of_its_domain(
    location: str, host: str | None
) -> None:
    archive = Archive.of(Settings(archive_url="https://{bucket}.s3.us.archive.org/{file}"))
    target = archive.redirect_target("https://mbid-a.s3.us.archive.org/index.json", location)
    assert (target and urlsplit(target).hostname) == host


@pytest.mark.parametrize("own", ["archive.co.uk", "10.0.0.1", "localhost:9000"])
def test_a_host_whose_domain_may_be_a_suffix_or_is_none_redirects_to_itself_alone(own: str) -> None:
    archive = Archive.of(Settings(archive_url=f"http://{own}/{{bucket}}/{{file}}"))
    for location, expected in (
        ("/other", f"http://{own}/other"),
        ("http://other.co.uk/x", None),
        ("http://x.0.0.1/x", None),
    ):
        assert archive.redirect_target(f"http://{own}/a/b", location) == expected
    below = Archive.of(Settings(archive_url=f"http://{{bucket}}.{own}/{{file}}"))
    assert below.redirect_target(f"http://a.{own}/b", "/other") == f"http://a.{own}/other"


@pytest.mark.parametrize(
    ("response", "kind", "text"),
    [
        (s3(503, "SlowDown", "Less."), ArchiveUnavailable, "503: SlowDown: Less."),
        (answer(503, "<h1>Error 503</h1>"), ArchiveUnavailable, "503: <h1>Error 503</h1>"),
        (answer(429), ArchiveUnavailable, "429"),
        (s3(503, "SlowDown", "Less.", "Your upload appears to be spam."), ArchiveRefused, "503: SlowDown: Less.: Your"),
        (s3(503, "ServiceUnavailable", "The item is dark."), ArchiveRefused, "503: ServiceUnavailable: The item"),
        (s3(403, "AccessDenied", "Denied", "This item has been taken offline."), ArchiveRefused, "403: AccessDenied"),
        (s3(403, "AccessDenied"), ArchiveDenied, "403: AccessDenied"),
        (answer(401), ArchiveDenied, "401"),
        (s3(400, "SignatureDoesNotMatch"), ArchiveDenied, "400: SignatureDoesNotMatch"),
        (s3(400, "InvalidRequest", "no"), ArchiveRefused, "400: InvalidRequest: no"),
        (s3(404, "NoSuchBucket", "none"), ArchiveNotFound, "404: NoSuchBucket: none"),
        (s3(500, "InternalError"), ArchiveError, "500: InternalError"),
        # A gateway's page may have any words, and a 200 may have an error.
        (answer(503, GATEWAYS_PAGE), ArchiveUnavailable, "503: <style>"),
        (answer(404, GATEWAYS_PAGE), ArchiveError, "404: <style>"),
        (answer(502, TITLED_PAGE), ArchiveError, "502: Bad Gateway & more"),
        (answer(200, "Log in", "Text/HTML"), ArchiveError, "200: Log in"),
        (answer(200, "<!DOCTYPE html><h1>Hi</h1>", ""), ArchiveError, "200: <!DOCTYPE html><h1>Hi"),
        (s3(200, "InternalError", "Try again."), ArchiveError, "200: InternalError: Try again."),
        (s3(200, "SlowDown"), ArchiveUnavailable, "200: SlowDown"),
        (answer(200, "  \n<Error><Code>InternalErr", "application/xml"), ArchiveError, "200: <Error><Code>InternalErr"),
        (answer(200, '<Error xmlns="x"><Message>No.</Message></Error>', "application/xml"), ArchiveError, "200: No."),
        (answer(307, location="http://[/"), ArchiveError, "307: redirected to http://[/"),
        # XML is not expanded.
        (s3(500, "Bomb", "&e8;"), ArchiveError, "500: Bomb: &e8;"),
    ],
)
def test_each_refusal_of_the_archive_is_an_error_of_its_kind(
    response: Response, kind: type[ArchiveError], text: str
) -> None:
    assert ArchiveResponse(response).is_refusal
    error = ArchiveResponse(response).error("PUT /item")
    assert type(error) is kind
    assert str(error).startswith(f"PUT /item: {text}")


def test_a_200_with_any_other_body_is_a_success() -> None:
    for body in ("", "OK", "<CopyObjectResult><ETag>x</ETag></CopyObjectResult>", '{"success": true}'):
        assert not ArchiveResponse(answer(200, body, "application/xml")).is_refusal


def test_a_refusal_is_quoted_in_part_only_and_has_its_retry_after_also_in_another_process() -> None:
    error = ArchiveResponse(answer(503, "<Error><Code>Long" + "x" * 1_000_000, **{"retry-after": "120"})).error(
        "PUT /item"
    )
    assert len(str(error)) < 600
    assert pickle.loads(pickle.dumps(error)).retry_after == 120


def test_a_gateways_page_does_not_say_that_an_item_is_gone() -> None:
    gone = s3(500, "InternalError", "", "FATAL ERROR: The item you are trying to edit cannot be retrieved.")
    assert [ArchiveResponse(each).item_gone for each in (gone, s3(404, "NoSuchKey"), answer(404))] == [True] * 3
    assert not any(ArchiveResponse(answer(status, GATEWAYS_PAGE)).item_gone for status in (404, 500, 503))


@pytest.mark.parametrize(
    ("response", "kind", "text"),
    [
        (s3(503, "SlowDown"), ArchiveUnavailable, "503: SlowDown"),
        (answer(200, "<html>"), ArchiveError, "not an item's metadata"),
        (answer(200, '{"files": [{"size": 1}]}'), ArchiveError, "not an item's metadata"),
        (answer(200, "[1]"), ArchiveError, "not an item's metadata"),
        (answer(200, '{"error": "try again later"}'), ArchiveError, "not an item's metadata: .*later"),
        (answer(200, "[" * 100_000), ArchiveError, "not an item's metadata"),
        (answer(200, f'{{"files": [{{"name": "x", "mtime": {"9" * 400}}}]}}'), ArchiveError, "not an item's metadata"),
    ],
)
def test_an_archive_that_does_not_describe_an_item_is_an_error_and_not_an_empty_item(
    response: Response, kind: type[ArchiveError], text: str
) -> None:
    archive = PublicArchive.of(Settings())
    with pytest.raises(kind, match=text):
        PublicArchive(archive.url, client(response), archive.reporting).item(f"mbid-{A}")


def metadata(response: Response) -> bytes | None:
    service = WebService.of(Settings())
    return WebService(service.url, client(response), service.reporting).metadata(COVER_ART, A)


@pytest.mark.parametrize(
    ("response", "kind", "text"),
    [
        *((answer(status), WebServiceUnavailable, str(status)) for status in (429, 502, 503, 504)),
        (answer(500), WebServiceError, "500"),
        (answer(302, location="/elsewhere"), WebServiceError, "302"),
        (answer(200, "<html>Log in</html>"), WebServiceError, "expected XML, got 19 bytes of 'text/html"),
        (answer(200, "", "application/xml"), WebServiceError, "expected XML, got 0 bytes"),
        (answer(200, "<metadata><a>", "application/xml"), WebServiceError, "expected complete XML, got no element"),
        (answer(200, "<error/>", "application/xml"), WebServiceError, "expected complete XML, got root 'error'"),
        *(
            (
                answer(200, f'<?xml version="1.0" encoding="{encoding}"?><metadata/>', "application/xml"),
                WebServiceError,
                f"expected complete XML, got {problem}",
            )
            for encoding, problem in (("x-mac", "unknown encoding"), ("shift_jis", "multi-byte encodings"))
        ),
    ],
)
def test_an_answer_of_the_web_service_that_is_no_complete_metadata_is_an_error(
    response: Response, kind: type[WebServiceError], text: str
) -> None:
    with pytest.raises(WebServiceError, match=text) as caught:
        metadata(response)
    assert (type(caught.value), caught.value.permanent) == (kind, False)


def test_metadata_are_returned_as_they_came_a_missing_entity_has_none_and_a_busy_service_names_its_time() -> None:
    with pytest.raises(WebServiceUnavailable) as caught:
        metadata(answer(503, **{"retry-after": "7"}))
    assert caught.value.retry_after == 7
    assert metadata(answer(200, "<metadata/>", "Application/XML")) == b"<metadata/>"
    assert metadata(answer(404)) is None


# Settings


def test_an_archive_url_without_its_places_is_refused() -> None:
    for url in ("https://s3.us.archive.org/{file}", "{bucket}/{file}", "https://{bucket}/{file}/x"):
        with pytest.raises(ValueError, match=r"archive_url\n.*expected"):
            Settings(archive_url=url)


def test_a_key_that_no_header_can_hold_is_refused_without_being_shown() -> None:
    for key in ("two words", "line\n", "a:b", "ключ", ""):
        with pytest.raises(ValueError, match=r"archive_keys\n.*of visible ASCII") as caught:
            Settings(archive_keys=SecretStr(f"account:{key}"))
        assert f"account:{key}" not in str(caught.value)


@pytest.mark.parametrize("name", ["musicbrainz_url", "art_event_queue_url"])
def test_a_wrong_url_of_a_database_is_named_at_the_start_and_not_quoted(name: str) -> None:
    wrong = ["mysql://host/hush", "postgresql://user:a/hush@host/db", "postgresql://user:a@hush@host/db", "hush"]
    # libpq would read the next password as a port, and its rest as a database.
    wrong.append("postgresql://user:1/hush@host/db")
    for url in (*wrong, "postgresql://user:hush@host/db?wrong=1", "postgresql://user:hush%@host/db"):
        with pytest.raises(ValidationError, match=name) as raised:
            Settings.model_validate({name: SecretStr(url)})
        assert "hush" not in str(raised.value)
    for url in ("postgresql:///db?host=/run", "postgres://u:p%40@a:1,[::1]:2/db", "postgresql://host"):
        assert getattr(Settings.model_validate({name: SecretStr(url)}), name).get_secret_value() == url
