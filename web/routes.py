"""Routes: the table of all that can be asked over HTTP.

One row makes a route: the app serves it and the OpenAPI document describes it. A row that shows or writes a node says
which, and takes schema and documentation from there.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypedDict

import trio

from midrun.fs.curves import Curve
from midrun.fs.faults import Fault, Gone, TimedOut
from midrun.fs.schema import schema_of
from midrun.web import artifacts, history, nodes, openapi, pages, poll
from midrun.web.calls import COUNT, JSON, TEXT, Answer, Call, Query, Route, document
from midrun.web.site import Site

_SUMMARY = "state/index.json"
_ANY: dict[str, Any] = {JSON: {}, TEXT: {"type": "string"}}

_FORMAT = Query(
    "format",
    "How a directory is shown: its entries, or the whole tree below it. No file is read for it.",
    ("list", "tree"),
    "list",
)

_HISTORY = (
    Query("enabled", "Whether it is recorded from now on.", ("true", "false")),
    Query(
        "max_entries",
        "How many of the newest allocations are kept: 100000 without it.",
        pattern=COUNT,
        expected="a whole number from 1 on",
    ),
)


class Health(TypedDict):
    """What `/health` shows."""

    status: Annotated[Literal["ok"], "This server answers."]
    run_id: str
    run_dir: str
    version: Annotated[str, "midrun's."]
    trainer_answers: Annotated[bool, "Whether the training process answered just now."]


def health(site: Site, call: Call) -> Answer:
    """Show that the server is there, of which run, and whether the training process answers it."""
    found = Health(
        status="ok",
        run_id=site.run.get("id", ""),
        run_dir=site.run.get("dir", ""),
        version=site.version,
        trainer_answers=site.ask(lambda: _answers(site)),
    )
    return document(found)


def openapi_document(site: Site, call: Call) -> Answer:
    """Show the OpenAPI document of these routes."""
    described = site.ask(lambda: openapi.described(site, ROUTES))
    body = json.dumps(openapi.document(ROUTES, described, site.version)).encode()
    return Answer(body, JSON)


async def _answers(site: Site) -> bool:
    with trio.move_on_after(1):
        try:
            return (await site.view.read(_SUMMARY)).age == 0
        except (TimedOut, Gone):
            return False
        except Fault:
            return True  # An answer, too.
    return False


ROUTES = (
    Route("/health", "Whether the server and the run are there", get=health, shows={JSON: schema_of(Health)}),
    Route("/run", "The run at its last safe point", node=_SUMMARY, get=nodes.show),
    Route(
        "/poll",
        "Several nodes at once, and of these only what has changed",
        get=poll.show,
        query=poll.QUERY,
        shows={JSON: schema_of(poll.Polled)},
    ),
    Route(
        "/history",
        "The points of a metric or learning rate, of every session of the run; without a name, what there is",
        node="history/rows",
        get=history.show,
        query=history.QUERY,
        shows={JSON: {"anyOf": [schema_of(history.Names), schema_of(Curve)]}},
    ),
    Route("/metrics", "The metrics", node="state/metrics/index.json", get=nodes.show),
    Route("/optimizers", "The optimizers", node="state/optimizers.json", get=nodes.show),
    Route(
        "/commands",
        "The commands given to the run",
        node="commands/index.json",
        writes="control/commands",
        get=nodes.show,
        post=nodes.write,
    ),
    Route(
        "/commands/{id}",
        "One command, and what came of it",
        node="commands/{id}/command.json",
        get=nodes.show,
        methods=nodes.methods,
    ),
    Route(
        "/commands/{id}/cancel",
        "Cancel a command",
        node="commands/{id}/cancel",
        post=nodes.write,
        methods=nodes.methods,
    ),
    Route(
        "/holds",
        "The holds on the run",
        node="holds/index.json",
        writes="control/hold",
        get=nodes.show,
        post=nodes.write,
    ),
    Route("/holds/{id}", "One hold", node="holds/{id}/hold.json", get=nodes.show, methods=nodes.methods),
    Route("/holds/{id}/cancel", "Cancel a hold", node="holds/{id}/cancel", post=nodes.write, methods=nodes.methods),
    Route("/holds/{id}/release", "Release a hold", node="holds/{id}/release", post=nodes.write, methods=nodes.methods),
    Route(
        "/control/{name}",
        "Anything that can be written under control/: what it takes, and writing it",
        node="control/{name}",
        get=nodes.show,
        post=nodes.write,
        methods=nodes.methods,
        shows=_ANY,
    ),
    Route("/telemetry/pipeline", "Where the time of a batch goes", node="state/pipeline/summary.json", get=nodes.show),
    Route("/inspectors", "The inspectors of the model", node="model/inspectors/index.json", get=nodes.show),
    Route(
        "/debug/cuda-memory/snapshot",
        "What CUDA memory is used for",
        node="debug/cuda-memory/snapshot.json",
        writes="control/cuda_memory_snapshot",
        get=nodes.show,
        post=nodes.write,
    ),
    Route(
        "/debug/cuda-memory/history",
        "Whether the allocator's history is recorded; with arguments: record it, or not",
        node="debug/cuda-memory/history.json",
        writes="control/cuda_memory_history",
        get=nodes.show_or_write("control/cuda_memory_history"),
        post=nodes.write,
        query=_HISTORY,
        shows={JSON: {}},
    ),
    Route("/control-log", "What was done to the run, and by whom", node="state/control-log.json", get=nodes.show),
    Route(
        "/checkpoints",
        "The checkpoints",
        node="artifacts/checkpoints.json",
        writes="control/checkpoint",
        get=nodes.show,
        post=nodes.write,
    ),
    Route(
        "/snapshots",
        "The snapshots",
        node="artifacts/snapshots.json",
        writes="control/snapshot",
        get=nodes.show,
        post=nodes.write,
    ),
    Route(
        "/checkpoints/resumable",
        "The checkpoints that training can go on from, with the steps that each leaves to redo",
        node="artifacts/resumable.json",
        get=nodes.show,
    ),
    Route("/rewinds", "Where the run has gone back to an earlier step", node="state/rewinds.json", get=nodes.show),
    Route("/resume", "The checkpoint that this session goes on from", node="state/resume.json", get=nodes.show),
    Route("/artifacts", "Checkpoints, snapshots and captures", node="artifacts/index.json", get=nodes.show),
    Route(
        "/artifacts/{path:path}",
        "Download a file that a link under artifacts/ leads to, such as checkpoints/last.ckpt",
        node="artifacts/{path}",
        get=artifacts.download,
        headers=artifacts.HEADERS,
        answers=artifacts.ANSWERS,
    ),
    Route(
        "/files",
        "The root of the tree",
        get=nodes.show,
        query=(_FORMAT,),
        shows={JSON: openapi.LISTING},
    ),
    Route(
        "/files/{path:path}",
        "Any node of the tree: the same bytes as under procfs/",
        node="{path}",
        get=nodes.show,
        post=nodes.write,
        methods=nodes.methods,
        query=(_FORMAT,),
        shows=_ANY,
    ),
    Route("/openapi.json", get=openapi_document),
    Route("/", get=pages.front),
    Route("/docs", get=pages.docs),
    Route("/static/{path:path}", node="{path}", get=pages.static),
)
