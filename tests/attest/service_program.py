"""A small service for the tests of what services share: `service_program.py OPTIONS-IN-JSON`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from excise.attest.service import Limits, Tls, json_body, json_response, make_app, serve, server
from excise.errors import Refused


class Echo(msgspec.Struct, forbid_unknown_fields=True):
    text: str


async def echo(request: Request) -> Response:
    return json_response(await json_body(request, Echo))


async def size(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())))


async def slow(_request: Request) -> Response:
    print("slow", flush=True)
    await asyncio.sleep(1)
    return PlainTextResponse("done")


async def refuse(_request: Request) -> Response:
    raise Refused("not today", differences=("it rains",), hint="come again")


async def broken(_request: Request) -> Response:
    raise RuntimeError("the secret is 42")


def main() -> None:
    options = json.loads(sys.argv[1])
    server.HEADER_S = options.get("header_s", server.HEADER_S)
    app = make_app(
        [
            Route("/echo", echo, methods=["POST"]),
            Route("/size", size, methods=["POST"]),
            Route("/slow", slow),
            Route("/refuse", refuse),
            Route("/broken", broken),
        ],
        limits=Limits(**options.get("limits", {})),
    )
    tls = None
    if "key" in options:
        tls = Tls(certificate=Path(options["certificate"]), key=Path(options["key"]))
    serve(app, tls=tls, ready=lambda url: print(url, flush=True))
    print("ended", flush=True)


if __name__ == "__main__":
    main()
