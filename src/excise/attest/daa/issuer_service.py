"""The issuer as an HTTP service.

`GET /daa/v1/group` gives the issuer's public key and rule; `POST /daa/v1/join` opens a session;
`POST /daa/v1/join/{session}/key` presents a key; `POST /daa/v1/join/{session}/activation` gives
back what was in the challenge. Bodies are JSON with bytes in base64; errors are problem+json.
"""

from __future__ import annotations

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from excise.attest.daa.folders import IssuerFolder
from excise.attest.daa.join import JoinActivation, JoinDesk, JoinKey
from excise.attest.service import Limits, json_body, json_response, make_app

LIMITS = Limits(body_bytes=64 << 10, bodies_bytes=64 << 20, body_s=20.0)


class GroupDescription(msgspec.Struct, frozen=True):
    """What a verifier needs to know of a group."""

    issuer_key: bytes
    rule: dict[str, str | bool | None]


def issuer_app(issuer: IssuerFolder, desk: JoinDesk) -> Starlette:
    """Return the application of an issuer.

    Args:
        issuer: The issuer's keys and rule.
        desk: Where members join it.
    """

    async def group(_request: Request) -> Response:
        return json_response(
            GroupDescription(issuer_key=issuer.public.to_bytes(), rule=issuer.rule.as_dict())
        )

    async def open_session(_request: Request) -> Response:
        return json_response(desk.open(), status=201)

    async def present(request: Request) -> Response:
        message = await json_body(request, JoinKey)
        session = request.path_params["session"]
        return json_response(await run_in_threadpool(desk.present, session, message))

    async def activate(request: Request) -> Response:
        message = await json_body(request, JoinActivation)
        session = request.path_params["session"]
        return json_response(await run_in_threadpool(desk.activate, session, message))

    return make_app(
        [
            Route("/daa/v1/group", group),
            Route("/daa/v1/join", open_session, methods=["POST"]),
            Route("/daa/v1/join/{session}/key", present, methods=["POST"]),
            Route("/daa/v1/join/{session}/activation", activate, methods=["POST"]),
        ],
        limits=LIMITS,
    )
