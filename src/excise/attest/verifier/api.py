"""The verifier's HTTP interface: Veraison's challenge-response, provisioning and discovery.

Sources: veraison/docs, api/challenge-response and api/endorsement-provisioning; RFC 9457
(problems), RFC 9110.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from excise import __version__
from excise.attest.service import Problem, SessionUnknown
from excise.attest.verifier.engine import Engine
from excise.attest.verifier.media import (
    ACCEPTED,
    DISCOVERY_TYPE,
    ENDORSEMENT_TYPES,
    PROVISIONING_TYPE,
    SESSION_TYPE,
    accepts,
    endorsement_profile,
    evidence_type,
    unwrap,
)
from excise.attest.verifier.openapi import (
    NEW_SESSION,
    PROVISIONING_INFO,
    SESSION,
    SUBMIT,
    VERIFICATION_INFO,
    describe,
)
from excise.attest.verifier.records import Document, Records, Session
from excise.errors import ExciseError, FormatError
from excise.evidence.base64text import decode_base64, encode_base64, encode_base64url
from excise.evidence.corim import CorimOptions, accept_corim

OPENAPI: Final = "/openapi.json"

MAX_EVIDENCE_BYTES: Final = 64 << 10
"""Many times a token; what is larger would keep other requests waiting."""

NONCE_BYTES: Final = (8, 64)
DEFAULT_NONCE_BYTES: Final = 32
_INFO_AGE_S: Final = 60
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_encode = msgspec.json.Encoder().encode


class Api:
    """Handlers of the verifier's requests.

    Args:
        engine: Appraises evidence.
        records: Keeps sessions and endorsements.
        corim: What is asked of endorsements.
        client_nonces: Whether a client may choose the challenge.
    """

    def __init__(
        self,
        engine: Engine,
        records: Records,
        *,
        corim: CorimOptions,
        client_nonces: bool = True,
    ) -> None:
        self._engine = engine
        self._records = records
        self._corim = corim
        self._client_nonces = client_nonces

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [
            Route(NEW_SESSION, self.new_session, methods=["POST"]),
            Route(SESSION, self.session, methods=["POST", "GET", "DELETE"]),
            Route(SUBMIT, self.submit_endorsements, methods=["POST"]),
            Route(VERIFICATION_INFO, self.verification_info, methods=["GET"]),
            Route(PROVISIONING_INFO, self.provisioning_info, methods=["GET"]),
            Route(OPENAPI, self.openapi, methods=["GET"]),
        ]

    async def new_session(self, request: Request) -> Response:
        """Open a session with a challenge."""
        _require_accept(request, SESSION_TYPE)
        nonce = self._nonce(request)
        session = await self._records.open(nonce)
        return _session_response(session, status=201, headers={"Location": f"session/{session.id}"})

    def _nonce(self, request: Request) -> bytes:
        given = request.query_params
        for name in given:
            if name not in ("nonce", "nonceSize") or len(given.getlist(name)) > 1:
                raise FormatError("is unknown, or given twice", field=f"query parameter {name!r}")
        if "nonce" in given and "nonceSize" in given:
            raise FormatError("nonce and nonceSize are mutually exclusive", field="query")
        smallest, largest = NONCE_BYTES
        if "nonce" in given:
            if not self._client_nonces:
                reason = "this verifier chooses the challenge itself"
                raise FormatError(reason, field="nonce")
            nonce = decode_base64(given["nonce"], field="nonce")
            if not smallest <= len(nonce) <= largest:
                reason = f"{len(nonce)} bytes, where {smallest} to {largest} are wanted"
                raise FormatError(reason, field="nonce")
            return nonce
        size = given.get("nonceSize", str(DEFAULT_NONCE_BYTES))
        if not re.fullmatch(r"[0-9]{1,2}", size) or not smallest <= int(size) <= largest:
            raise FormatError(f"is not in the range {smallest} to {largest}", field="nonceSize")
        return secrets.token_bytes(int(size))

    async def session(self, request: Request) -> Response:
        """Answer, return or delete a session; one route, so that a 405 names all three methods."""
        if request.method == "POST":
            return await self.submit_evidence(request)
        if request.method == "DELETE":
            return await self.delete_session(request)
        return await self.get_session(request)

    async def submit_evidence(self, request: Request) -> Response:
        """Appraise evidence and answer the session, once."""
        _require_accept(request, SESSION_TYPE)
        body = await request.body()
        if not body:
            raise FormatError("there is no evidence in the body", field="body")
        if len(body) > MAX_EVIDENCE_BYTES:
            detail = f"evidence has at most {MAX_EVIDENCE_BYTES} bytes"
            raise Problem(413, kind="too-large", title="Body too large", detail=detail)
        media_type, evidence = unwrap(_content_type(request), body)
        kind = evidence_type(media_type)
        if kind is None:
            raise _unsupported(media_type, ACCEPTED)
        session = await self._records.waiting(_session_id(request))
        answer = self._engine.answer(kind, evidence, nonce=session.nonce)
        return _session_response(await self._records.answer(session, answer))

    async def get_session(self, request: Request) -> Response:
        """Return a session as it stands."""
        _require_accept(request, SESSION_TYPE)
        return _session_response(await self._records.get(_session_id(request)))

    async def delete_session(self, request: Request) -> Response:
        """Delete a session."""
        await self._records.delete(_session_id(request))
        return Response(status_code=204)

    async def submit_endorsements(self, request: Request) -> Response:
        """Take up a CoRIM, if it is to be believed."""
        _require_accept(request, PROVISIONING_TYPE)
        media_type = _content_type(request)
        profile = endorsement_profile(media_type)
        if profile is None:
            raise _unsupported(media_type, ENDORSEMENT_TYPES)
        data = await request.body()
        if not data:
            raise FormatError("there is no CoRIM in the body", field="body")
        now = time.time()
        try:
            # In a thread: a large document takes a while, and others are served meanwhile.
            held = await asyncio.to_thread(
                accept_corim, data, options=self._corim, source="CoRIM", profile=profile
            )
        except ExciseError as error:
            return _provisioning_response("failed", now, reason=str(error))
        document = Document(
            build=held.corim, corim=held.corim, profile=profile, data=data, received_s=now
        )
        await self._records.keep_document(document)
        self._engine.add(document.build, held)
        return _provisioning_response("success", now)

    async def verification_info(self, request: Request) -> Response:
        """Return the verifier's keys, media types and paths."""
        _require_accept(request, DISCOVERY_TYPE, "application/json")
        keys = [key.jwk() for key in self._engine.ring.keys]
        endpoints = {"newChallengeResponseSession": NEW_SESSION}
        more = {"ear-verification-key": keys[0], "ear-verification-keys": {"keys": keys}}
        return _info_response({**more, "media-types": ACCEPTED}, endpoints)

    async def provisioning_info(self, request: Request) -> Response:
        """Return the media types and the path of endorsements."""
        _require_accept(request, DISCOVERY_TYPE, "application/json")
        return _info_response({"media-types": ENDORSEMENT_TYPES}, {"provisioningSubmit": SUBMIT})

    async def openapi(self, _request: Request) -> Response:
        """Return the description of this interface."""
        return Response(_encode(describe()), media_type="application/json")


def _require_accept(request: Request, *offered: str) -> None:
    header = ", ".join(request.headers.getlist("accept")) or None
    if not accepts(header, *offered):
        raise Problem(
            406,
            kind="not-acceptable",
            title="Not acceptable",
            detail=f"the only media type of the answer is {offered[0]}",
        )


def _content_type(request: Request) -> str:
    given = request.headers.get("content-type")
    if not given:
        raise FormatError("is missing", field="Content-Type")
    return given


def _unsupported(media_type: str, taken: list[str]) -> HTTPException:
    """Return the refusal of a media type, which names those that are taken."""
    headers = {"Accept": ", ".join(taken)}
    return HTTPException(415, f"{media_type} is not taken here", headers)


def _session_id(request: Request) -> str:
    given = str(request.path_params["session"]).lower()
    if not _UUID.fullmatch(given):
        raise SessionUnknown("no such session", hint="Open a new one")
    return given


def _session_response(
    session: Session, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    value: dict[str, Any] = {
        "nonce": encode_base64url(session.nonce),
        "expiry": _time(session.expiry_s),
        "accept": ACCEPTED,
        "status": session.status,
    }
    if session.result:
        value["evidence"] = {
            "type": session.media_type,
            "value": encode_base64(session.evidence),
        }
        value["result"] = session.result
    more = {"Cache-Control": "no-store", **(headers or {})}
    return Response(_encode(value), status_code=status, media_type=SESSION_TYPE, headers=more)


def _provisioning_response(status: str, now: float, *, reason: str = "") -> Response:
    value = {"status": status, "expiry": _time(now)}
    if reason:
        value["failure-reason"] = reason
    return Response(_encode(value), media_type=PROVISIONING_TYPE)


def _info_response(value: dict[str, Any], endpoints: dict[str, str]) -> Response:
    told = {
        **value,
        "version": __version__,
        "service-state": "READY",
        "api-endpoints": endpoints,
    }
    headers = {"Cache-Control": f"max-age={_INFO_AGE_S}"}
    return Response(_encode(told), media_type=DISCOVERY_TYPE, headers=headers)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
