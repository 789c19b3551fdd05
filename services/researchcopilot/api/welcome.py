"""The front door: which version this is, and where its description lies. No key is needed."""

from starlette.responses import Response

from researchcopilot import __version__
from researchcopilot.api.operations import Answer, Call, Operation
from researchcopilot.api.render import json_response


async def welcome(call: Call) -> Response:
    """Name, version, links."""
    links = {"openapi": "/openapi.json", "runs": "/v1/runs", "documents": "/v1/documents"}
    return json_response({"name": "ResearchCopilot", "version": __version__, "links": links})


async def describe(call: Call) -> Response:
    """The OpenAPI document."""
    return Response(call.services.openapi, 200, None, "application/json")


OPERATIONS = (
    Operation(
        "GET",
        "/",
        welcome,
        "Version and links.",
        {200: Answer("Welcome", "Welcome")},
        problems=(422,),
        key=False,
    ),
    Operation(
        "GET",
        "/openapi.json",
        describe,
        "This document.",
        {200: Answer("OpenAPI 3.1", "OpenApi")},
        problems=(422,),
        key=False,
    ),
)
