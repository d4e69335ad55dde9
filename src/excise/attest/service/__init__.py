"""What the HTTP services of attestation share: limits, sessions, problems, TLS, an orderly end.

A service is a Starlette application made by `make_app` and run by `serve`; its errors are
problem+json (RFC 9457), made of the same errors the commands print.

Names are imported from their modules when they are first used: a client does not pay for a server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from excise.errors import HostError

if TYPE_CHECKING:
    from excise.attest.service.app import Limits, json_body, json_response, make_app
    from excise.attest.service.client import ServiceClient
    from excise.attest.service.problems import PROBLEM_MEDIA_TYPE, Problem, problem_of
    from excise.attest.service.server import Tls, serve
    from excise.attest.service.sessions import (
        NoRoomError,
        SessionError,
        SessionExpired,
        SessionStore,
        SessionUnknown,
        SessionUsed,
    )

__all__ = [
    "PROBLEM_MEDIA_TYPE",
    "Limits",
    "NoRoomError",
    "Problem",
    "ServiceClient",
    "SessionError",
    "SessionExpired",
    "SessionStore",
    "SessionUnknown",
    "SessionUsed",
    "Tls",
    "json_body",
    "json_response",
    "make_app",
    "problem_of",
    "serve",
]

_MODULES = {
    "app": ("Limits", "json_body", "json_response", "make_app"),
    "client": ("ServiceClient",),
    "problems": ("PROBLEM_MEDIA_TYPE", "Problem", "problem_of"),
    "server": ("Tls", "serve"),
    "sessions": (
        "NoRoomError",
        "SessionError",
        "SessionExpired",
        "SessionStore",
        "SessionUnknown",
        "SessionUsed",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            try:
                return getattr(import_module(f"{__name__}.{module}"), name)
            except ImportError as error:
                raise HostError(
                    f"a package for HTTP services cannot be loaded: {error}",
                    hint="pip install 'excise[attest]'",
                ) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
