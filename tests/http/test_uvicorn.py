"""What is used of uvicorn's inside is there: a release that has renamed it would break connections, and in silence."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

import pagetide_http.protocol
from pagetide_http.protocol import GuardedProtocol

# uvicorn's objects by what our code calls them; `self` within `GuardedProtocol`.
KINDS = {
    "cycle": RequestResponseCycle, "answered": RequestResponseCycle, "flow": FlowControl,
    "protocol": HttpToolsProtocol, "super()": HttpToolsProtocol, "self": HttpToolsProtocol,
}  # fmt: skip


def uses() -> set[tuple[str, str]]:
    """(object, attribute) of all that the code of ours takes from uvicorn's objects."""
    found = set()
    for path in Path(pagetide_http.protocol.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node.value).rpartition(".")[2].lstrip("_")
                if name != "self" or path.stem == "protocol":
                    found.add((name, node.attr))
    own = {*vars(GuardedProtocol), *GuardedProtocol.__annotations__, "_patience"}
    return {
        (name, attribute) for name, attribute in found if name in KINDS and (name != "self" or attribute not in own)
    }


async def application(scope, receive, send):
    """Is never asked."""


async def test_all_that_is_used_of_uvicorn_is_there():
    objects = {
        HttpToolsProtocol: HttpToolsProtocol(Config(application, ws="none"), ServerState(), {}),
        RequestResponseCycle: RequestResponseCycle(**dict.fromkeys(inspect.signature(RequestResponseCycle).parameters)),
        FlowControl: FlowControl(None),
    }
    used = uses()
    assert {("self", "_unset_keepalive_if_required"), ("super()", "_start_asgi_task"), ("cycle", "flow")} <= used
    assert {("cycle", "chunked_encoding"), ("cycle", "expected_content_length"), ("flow", "write_paused")} <= used
    assert [use for use in sorted(used) if not hasattr(objects[KINDS[use[0]]], use[1])] == []
