"""Applications whose requests are limited in size and time before a handler sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from excise.attest.service.problems import Problem, handle
from excise.errors import ExciseError, FormatError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_T = TypeVar("_T")
SMALL_BYTES: Final = 64 << 10
"""What a body is called small up to, and decoded at once; larger ones are in a thread."""
JSON_MEDIA_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a service takes from its clients.

    Attributes:
        body_bytes: Largest body.
        bodies_bytes: Most that the bodies of all requests together may take in memory; bodies
            above SMALL_BYTES may fill three quarters of it, so that they leave room for others.
        body_s: Longest time a client may take to send a body.
    """

    body_bytes: int = 64 << 10
    bodies_bytes: int = 256 << 20
    body_s: float = 30.0


class _BoundedBodies:
    """Reads each body whole, within the limits, and hands it on; else answers with a problem."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app, self._limits, self._held = app, limits, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parts: list[bytes] = []
        try:
            try:
                _check_declared(scope, self._limits.body_bytes)
                whole = await self._read(receive, parts)
            except Problem as problem:
                await problem.response()(scope, receive, send)
                return
            if whole:
                parts[:] = [b"".join(parts)]
                await self._app(scope, _replay(parts[0], receive), send)
        finally:
            self._held -= sum(map(len, parts))

    def _hold(self, part: bytes, size: int) -> None:
        """Count a part of a body; what a client only announces takes no room from others."""
        room = self._limits.bodies_bytes
        if self._held + len(part) > (room if size <= SMALL_BYTES else room * 3 // 4):
            raise Problem(
                503,
                kind="busy",
                title="Too many requests at once",
                detail="the bodies of the requests under way take all the room there is",
            )
        self._held += len(part)

    async def _read(self, receive: Receive, parts: list[bytes]) -> bool:
        """Add the body to the parts that are held; return False when the client has gone."""
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._limits.body_bytes:
                        raise _too_large(self._limits.body_bytes)
                    self._hold(part, size)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            raise Problem(
                408,
                kind="timeout",
                title="Body came too slowly",
                detail=f"the body was not complete after {self._limits.body_s:g} s",
            ) from None


def _too_large(limit: int) -> Problem:
    return Problem(
        413, kind="too-large", title="Body too large", detail=f"a body has at most {limit} bytes"
    )


def _check_declared(scope: Scope, limit: int) -> None:
    """Refuse a body by the length that its request announces."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            if not value.isdigit():
                raise Problem(400, kind="length", title="Bad Content-Length", detail="not a number")
            if int(value) > limit:
                raise _too_large(limit)


def _replay(body: bytes, receive: Receive) -> Receive:
    done = False

    async def again() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def make_app(
    routes: Sequence[BaseRoute],
    *,
    limits: Limits,
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """Return an application whose requests are bounded and whose errors are problem+json.

    Args:
        routes: Its routes.
        limits: What it takes from clients.
        lifespan: What to open before the first request and close after the last.
    """
    return Starlette(
        routes=list(routes),
        middleware=[Middleware(_BoundedBodies, limits=limits)],
        exception_handlers={
            ExciseError: handle,
            Problem: handle,
            HTTPException: handle,
            Exception: handle,
        },
        lifespan=lifespan,
    )


async def json_body(
    request: Request, kind: type[_T], *, decode: Callable[[bytes], _T] | None = None
) -> _T:
    """Return the body of a request as the msgspec type asked for.

    Args:
        request: The request.
        kind: The type.
        decode: Decodes large bodies, in a thread: it should work by parts, since whatever is done
            in one step keeps other requests waiting. By default msgspec does, in one step.

    Raises:
        Problem: Another media type than JSON.
        FormatError: Not JSON, or not of that type; the field is named.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != JSON_MEDIA_TYPE:
        raise Problem(
            415,
            kind="media-type",
            title="Unsupported media type",
            detail=f"the body must be {JSON_MEDIA_TYPE}, not {given or 'unnamed'}",
        )
    body = await request.body()
    try:
        if decode is not None and len(body) > SMALL_BYTES:
            return await asyncio.to_thread(decode, body)
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(str(error), field="body") from None


def json_response(value: Any, *, status: int = 200) -> Response:
    """Return a msgspec value as a JSON answer that no cache keeps."""
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type=JSON_MEDIA_TYPE,
        headers={"Cache-Control": "no-store"},
    )
