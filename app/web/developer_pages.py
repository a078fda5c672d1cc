"""Pages for developers: the API's reference, made from its description, and the search box for other sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from app.web.pages import templates

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A parameter, field or status with its type and its meaning."""

    name: str
    kind: str
    description: str


@router.get("/api", response_class=HTMLResponse)
async def api_reference(request: Request) -> HTMLResponse:
    """Show the addresses, parameters and answers of the API."""
    document = request.app.openapi()
    schemas: Mapping[str, Any] = document["components"]["schemas"]
    models = {
        name: [Entry(field, _kind(each), each.get("description", "")) for field, each in schema["properties"].items()]
        for name, schema in schemas.items()
        if "properties" in schema
    }
    operations = []
    for path, methods in document["paths"].items():
        described = methods["get"]
        given, responses = described.get("parameters", ()), described["responses"]
        content = responses["200"]["content"]
        json_content = content.get("application/json")
        operations.append(
            {
                "path": path,
                "summary": described["description"],
                "parameters": [
                    Entry(each["name"], _kind(each["schema"]), each.get("description", "")) for each in given
                ],
                "answer": _kind(json_content["schema"]) if json_content else " or ".join(content),
                "errors": [
                    Entry(status, "", each["description"]) for status, each in responses.items() if status != "200"
                ],
            }
        )
    introduction = document["info"]["description"].split("\n\n")
    return _page("api.html", introduction=introduction, operations=operations, models=models)


@router.get("/search-box", response_class=HTMLResponse)
async def search_box(request: Request) -> HTMLResponse:
    """Show the search box for other sites at work, and how a site includes it."""
    return _page("search_box.html", base=f"{request.url.scheme}://{request.url.netloc}")


def _page(name: str, **values: Any) -> HTMLResponse:
    return HTMLResponse(templates.get_template(name).render(**values))


def _kind(schema: Mapping[str, Any]) -> str:
    """Return the type of a value in words: `string`, `list of FoundHit`, `integer or null`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if "items" in schema else "list"
    return str(schema.get("type", "any"))
