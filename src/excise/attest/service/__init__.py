"""What the HTTP services of attestation share: limits, sessions, problems, TLS, an orderly end.

A service is a Starlette application made by `make_app` and run by `serve`; its errors are
problem+json (RFC 9457), made of the same errors the commands print.
"""

from excise.attest.service import extra as extra  # first, for its error
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
