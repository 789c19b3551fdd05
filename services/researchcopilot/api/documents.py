"""Documents: the corpus over HTTP. A document that is stored also asks for a new index.

The text comes as the body itself (text/markdown or text/plain, with ?name= or a file name in
Content-Disposition) or as JSON {"name", "text"}.
"""

import asyncio
import contextlib
import hashlib
import re
from typing import Any
from urllib.parse import unquote

from starlette.responses import Response

from researchcopilot.api import bodies, cursors, views
from researchcopilot.api.operations import Answer, Call, Operation, Param
from researchcopilot.api.problems import Fault, Problem, refuse
from researchcopilot.api.render import dump, json_response, moment
from researchcopilot.api.runs import CURSOR, LIMIT, page_response
from researchcopilot.api.views import Shown, View, maybe, text, time, uuid, whole
from researchcopilot.core.documents import (
    AddedDocument,
    Document,
    DocumentInfo,
    NewDocument,
    read_document,
)
from researchcopilot.core.errors import Unavailable
from researchcopilot.core.fields import Body, Field
from researchcopilot.core.models import Submission
from researchcopilot.core.schemas import Id, Text
from researchcopilot.storage import documents as stored

_TYPES = ("text/markdown", "text/plain")
_JSON = "application/json"
# What `read_document` can read; it looks at the bytes and not at the name.
_CHARSETS = (*bodies.UTF_8, "gb18030", "gbk", "gb2312")
_NAME = Param("name", Text(1, 500), "the document's name: a new text of one name replaces the old")
_FILENAME = re.compile(r"""filename="((?:[^"\\]|\\.)*)"|filename=([^\s;"]+)""", re.IGNORECASE)
_FILENAME_UTF8 = re.compile(r"filename\*=utf-8'[^']*'([^\s;]+)", re.IGNORECASE)

NEW_DOCUMENT = Body(
    "NewDocument",
    (
        Field("name", Text(1, 500), "its file name, .md or .txt", True),
        Field("text", Text(0, 2**31), "the document itself", True),
    ),
)

_INFO: tuple[Shown[DocumentInfo | Document], ...] = (
    Shown("document_id", uuid(), lambda doc: doc.document_id),
    Shown("name", text(), lambda doc: doc.name),
    Shown("title", text(), lambda doc: doc.title),
    Shown("media_type", text(enum=list(_TYPES)), lambda doc: doc.media_type),
    Shown("sha256", text("of the text as UTF-8"), lambda doc: doc.sha256),
    Shown("bytes", whole("of the text as UTF-8"), lambda doc: doc.bytes),
    Shown("created_at", time(), lambda doc: moment(doc.created_at)),
)
DOCUMENT: View[DocumentInfo | Document] = View(
    "Document", "A document of the corpus, without its text", _INFO
)
_TEXT: tuple[Shown[Any], ...] = (
    Shown("retired_at", maybe(time("when a new text replaced it")), lambda d: moment(d.retired_at)),
    Shown("text", text("a citation's start and end count its characters"), lambda d: d.body),
)
FULL_DOCUMENT: View[Any] = View(
    "FullDocument", "A document with its text, also one that was replaced", (*_INFO, *_TEXT)
)
STORED: View[tuple[AddedDocument, str]] = View(
    "StoredDocument",
    "What became of a document that was sent",
    (
        Shown("document_id", uuid(), lambda it: it[0].document_id),
        Shown("name", text(), lambda it: it[0].name),
        Shown(
            "outcome",
            text(enum=["added", "replaced", "unchanged", "duplicate"]),
            lambda it: it[0].outcome,
        ),
        Shown(
            "duplicate_of",
            maybe(text("the document that has this very text")),
            lambda it: it[0].duplicate_of,
        ),
        Shown("rebuild_run_id", uuid("the run that makes the new index"), lambda it: it[1]),
    ),
)


async def add_document(call: Call) -> Response:
    """Store a document and submit a rebuild of the index."""
    services = call.services
    document = await _read(call)
    [added] = await stored.add_documents(services.db, call.workspace_id, [document])
    # Also when nothing changed: the process may have died between the two the last time. One that
    # waits already is found by its unique key, and a rebuild without changes makes no version.
    rebuild_run_id = await _ask_for_rebuild(call)
    made = added.outcome in ("added", "replaced")
    headers = {"Location": f"/v1/documents/{added.document_id}"} if made else {}
    return json_response(STORED((added, rebuild_run_id)), 201 if made else 200, headers)


async def _ask_for_rebuild(call: Call) -> str:
    submit = call.services.submitter
    try:
        submitted = await submit(Submission((stored.rebuild_run(call.workspace_id),)))
    except Unavailable:
        # The one that waited was claimed in this moment, and may not have seen our document.
        submitted = await submit(Submission((stored.rebuild_run(call.workspace_id),)))
    return submitted.run_ids[0]


async def _read(call: Call) -> NewDocument:
    limit = call.services.settings.max_document_bytes
    kind = bodies.media_type(call.scope, _JSON, *_TYPES, charsets=_CHARSETS)
    if kind == _JSON:
        name, data = await _from_json(call, limit)
    else:
        name = _given_name(call)
        data = await bodies.read(call.scope, call.receive, limit)
    if len(data) > bodies.SLOW_BYTES:
        return await asyncio.to_thread(read_document, name, data, max_bytes=limit)
    return read_document(name, data, max_bytes=limit)


def _given_name(call: Call) -> str:
    name = call.query["name"] or _file_name(call.header(b"content-disposition"))
    if name is None:
        message = "is required: ?name=notes.md, or a filename in Content-Disposition"
        raise refuse([Fault("name", message, "required")])
    return str(name)


async def _from_json(call: Call, limit: int) -> tuple[str, bytes]:
    # JSON escapes make a text longer, up to six times; the text itself is measured afterwards.
    data = await bodies.read(call.scope, call.receive, limit * 2 + 4096)
    faults: list[Fault] = []
    if call.query["name"] is not None:
        faults.append(Fault("name", "stands in the JSON; leave it out of the URL"))
    fields = NEW_DOCUMENT.check(bodies.parse(data), "$", faults)
    if faults:
        raise refuse(faults)
    return fields["name"], fields["text"].encode()


def _file_name(disposition: str | None) -> str | None:
    """The filename of a Content-Disposition (RFC 6266), without any folders."""
    if disposition is None:
        return None
    if extended := _FILENAME_UTF8.search(disposition):
        name = unquote(extended[1])
    elif plain := _FILENAME.search(disposition):
        name = re.sub(r"\\(.)", r"\1", plain[1]) if plain[1] is not None else plain[2]
        with contextlib.suppress(UnicodeError):
            name = name.encode("latin-1").decode()  # what browsers and curl send
    else:
        return None
    return name.replace("\\", "/").rpartition("/")[2] or None


async def list_documents(call: Call) -> Response:
    """A page of the corpus, by name."""
    limit = call.query["limit"]
    after = cursors.decode("documents", call.query["cursor"], _position)
    found = await stored.list_documents(
        call.services.db, call.workspace_id, after=after, limit=limit + 1
    )
    page = found[:limit]
    cursor = cursors.encode("documents", page[-1].name) if len(found) > limit else None
    return page_response(call, [DOCUMENT(document) for document in page], cursor)


def _position(values: list[Any]) -> str:
    faults: list[Fault] = []
    name = _NAME.kind.check(values[0], "cursor", faults)
    if faults:
        raise ValueError("not a position")
    return str(name)


async def get_document(call: Call) -> Response:
    """A document with its text."""
    document_id = call.path["document_id"]
    document = await stored.get_document(call.services.db, call.workspace_id, document_id)
    if document is None:
        raise Problem("not_found", "There is no such document in this workspace.")
    body = dump(FULL_DOCUMENT(document))
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Response(body, 200, {"ETag": tag}, _JSON)


OPERATIONS = (
    Operation(
        "POST",
        "/v1/documents",
        add_document,
        "Add a document to the corpus, or replace the one of this name.",
        {
            200: Answer("It was there already", "StoredDocument"),
            201: Answer("Added or replaced", "StoredDocument", ("Location",)),
        },
        body=NEW_DOCUMENT,
        body_types={_JSON: views.ref("NewDocument"), **{kind: text() for kind in _TYPES}},
        query=(_NAME,),
        problems=(400, 408, 413, 415, 422, 503),
    ),
    Operation(
        "GET",
        "/v1/documents",
        list_documents,
        "The corpus, by name, without texts.",
        {200: Answer("A page", "DocumentPage", ("Link",))},
        query=(LIMIT, CURSOR),
        problems=(422, 503),
    ),
    Operation(
        "GET",
        "/v1/documents/{document_id}",
        get_document,
        "A document with its text, so that a citation can be checked.",
        {200: Answer("The document", "FullDocument", ("ETag",))},
        params=(Param("document_id", Id(), "a document of this workspace"),),
        problems=(404, 422, 503),
    ),
)
