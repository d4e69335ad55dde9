"""Errors as problem+json (RFC 9457): the same attributes that a command prints."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from excise.attest.service.sessions import (
    NoRoomError,
    SessionExpired,
    SessionUnknown,
    SessionUsed,
)
from excise.errors import ExciseError, FormatError, HostError, Refused, UsageError

if TYPE_CHECKING:
    from starlette.requests import Request

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
_TYPES: Final = "urn:excise:problem:"
_log = logging.getLogger(__name__)

# The first class that fits decides.
_STATUS: Final[tuple[tuple[type[ExciseError], int, str], ...]] = (
    (SessionUnknown, 404, "Unknown session"),
    (SessionUsed, 409, "Session already used"),
    (SessionExpired, 410, "Session expired"),
    (NoRoomError, 503, "Too many sessions"),
    (Refused, 403, "Refused"),
    (FormatError, 400, "Unreadable input"),
    (UsageError, 400, "Request that makes no sense"),
    (HostError, 503, "This host cannot"),
)


class Problem(Exception):  # noqa: N818  the standard's word
    """A problem that is no error of excise, such as a body that is too large.

    Attributes:
        status: HTTP status.
        kind: Last part of the problem's type.
        title: What kind of problem, the same each time.
        detail: This occurrence of it.
    """

    def __init__(self, status: int, *, kind: str, title: str, detail: str) -> None:
        self.status, self.kind, self.title, self.detail = status, kind, title, detail
        super().__init__(detail)

    def body(self) -> dict[str, Any]:
        """Return the fields of the problem."""
        return {
            "type": _TYPES + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }

    def response(self) -> Response:
        """Return the problem as an answer."""
        return _response(self.body())


def problem_of(error: Exception) -> dict[str, Any]:
    """Return the fields of the problem an error is; an unexpected one tells nothing of itself."""
    if isinstance(error, Problem):
        return error.body()
    if isinstance(error, HTTPException):
        return {
            "type": "about:blank",
            "title": error.detail,
            "status": error.status_code,
        }
    if not isinstance(error, ExciseError):
        return {"type": "about:blank", "title": "Internal Server Error", "status": 500}
    status, title = 500, "Error"
    for kind, number, name in _STATUS:
        if isinstance(error, kind):
            status, title = number, name
            break
    fields = {
        key: value for key, value in error.as_dict().items() if key not in ("error", "exit_code")
    }
    return {
        "type": _TYPES + type(error).__name__,
        "title": title,
        "status": status,
        "detail": str(error),
        **fields,
    }


def _response(body: dict[str, Any]) -> Response:
    text = json.dumps(body, default=str).encode()
    # A client that was refused for what it sent may be sending still: it cannot be gone on with.
    # After an unexpected error the server ends the connection itself: a client must not use it on.
    headers = {"Connection": "close"} if body["status"] in (408, 413, 500) else {}
    if body["status"] == 503:
        headers["Retry-After"] = "1"
    return Response(
        text, status_code=body["status"], media_type=PROBLEM_MEDIA_TYPE, headers=headers
    )


async def handle(_request: Request, error: Exception) -> Response:
    """Answer a request that failed; the handler of every application."""
    body = problem_of(error)
    if body["status"] == 500:
        _log.error("unexpected error", exc_info=error)
    response = _response(body)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response
