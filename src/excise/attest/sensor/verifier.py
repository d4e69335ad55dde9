"""The sensor's verifier as a service: sessions, transactions, results as JSON and as EAR."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from excise.attest.sensor.page import transaction_page
from excise.attest.sensor.protocol import (
    SESSIONS,
    TRANSACTIONS,
    Answer,
    Opened,
    SensorEvidence,
    decode_evidence,
)
from excise.attest.sensor.records import SensorRecords, StoredTransaction
from excise.attest.sensor.result import basename_text
from excise.attest.service import Limits, Problem, SessionStore, json_body, json_response, make_app
from excise.attest.service.database import Database
from excise.errors import ExciseError, Refused
from excise.evidence.daa import Signature
from excise.evidence.sensor import SensorPolicy, appraise_transaction
from excise.evidence.sensor_message import read_sensor_message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from excise.evidence.ima import Checkpoint

NONCE_BYTES: Final = 32
EAR_MEDIA_TYPE: Final = "application/eat+jwt"
LIMITS: Final = Limits(body_bytes=96 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorVerifier:
    """What the service works with.

    Attributes:
        policy: What is asked of sensors.
        records: Where transactions are kept.
        sessions: Open sessions; their nonces.
        basename: What sensors make their pseudonyms of; None: they stay anonymous, and send
            their whole lists.
        signing_key: Signs EARs (P-256); None: results are JSON only.
    """

    policy: SensorPolicy
    records: SensorRecords
    sessions: SessionStore[bytes]
    basename: bytes | None = None
    signing_key: EllipticCurvePrivateKey | None = None

    def open(self) -> Opened:
        """Return a new session.

        Raises:
            NoRoomError: Too many are open.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        return Opened(
            session=self.sessions.open(nonce),
            nonce=nonce,
            lifetime_s=self.sessions.lifetime_s,
            basename=self.basename,
        )

    async def answer(self, session: str, evidence: SensorEvidence) -> Answer:
        """Appraise a transaction, keep it, and return the answer.

        Raises:
            SessionError: The session is unknown, used or over.
            Refused: The list goes on from elsewhere than where it ended here.
        """
        nonce = self.sessions.take(session)
        before = await self._state(evidence)
        found = await run_in_threadpool(
            appraise_transaction,
            evidence.message,
            evidence.signature,
            nonce=nonce,
            policy=self.policy,
            basename=self.basename,
            attest=evidence.attest,
            checkpoint=before,
        )
        kept = StoredTransaction(
            id=secrets.token_hex(16),
            received_s=time.time(),
            pseudonym=found.pseudonym.hex() if found.pseudonym is not None else None,
            outcome=found.outcome,
            nonce=nonce,
            message=evidence.message,
            signature=evidence.signature,
            attest=evidence.attest,
            basename=self.basename if found.pseudonym is not None else None,
            result={
                **found.as_dict(),
                "parts": {name: part.value for name, part in found.parts.items()},
                "reasons": list(found.reasons()),
            },
        )
        from_head = found.message is None or found.message.list_offset == 0
        await self.records.keep(
            kept, checkpoint=found.checkpoint, before=None if from_head else before
        )
        return _answer(kept, found.checkpoint or before)

    async def _state(self, evidence: SensorEvidence) -> Checkpoint | None:
        """Return the state a message goes on from; None where it begins at the list's head.

        The pseudonym is not verified yet: whoever borrows one fails by the signature.
        """
        begins = await run_in_threadpool(_begins, evidence)
        if begins is None:
            return None
        offset, pseudonym = begins
        state = await self.records.state(pseudonym) if pseudonym is not None else None
        known = state.offset if state is not None else 0
        if offset != known:
            raise Refused(
                f"the entries begin at offset {offset}, and those known here end at {known}",
                differences=(f"known_list_end={known}",),
                hint="Open a new session and send the list from there",
            )
        return state


def sensor_app(verifier: SensorVerifier, *, database: Database | None = None) -> Starlette:
    """Return the application.

    Args:
        verifier: What it works with.
        database: Closed when the application ends; None where the caller closes it.
    """

    async def open_session(_request: Request) -> Response:
        return json_response(verifier.open(), status=201)

    async def evidence(request: Request) -> Response:
        sent = await json_body(request, SensorEvidence, decode=decode_evidence)
        return json_response(await verifier.answer(request.path_params["session"], sent))

    async def result(request: Request) -> Response:
        found = await verifier.records.transaction(request.path_params["transaction"])
        if found is None:
            raise Problem(
                404,
                kind="transaction",
                title="No such transaction",
                detail="no transaction of this name is kept",
            )
        accepted = request.headers.get("accept", "")
        if EAR_MEDIA_TYPE in accepted:
            return _ear_response(found, verifier.signing_key)
        if "text/html" in accepted:
            return transaction_page(found)
        return json_response(_result(found))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        if database is not None:
            database.close()

    return make_app(
        [
            Route(SESSIONS, open_session, methods=["POST"]),
            Route(f"{SESSIONS}/{{session}}/evidence", evidence, methods=["POST"]),
            Route(f"{TRANSACTIONS}/{{transaction}}", result),
        ],
        limits=LIMITS,
        lifespan=lifespan,
    )


def _begins(evidence: SensorEvidence) -> tuple[int, str | None] | None:
    """Return where a message's entries begin, and the pseudonym; None where there is no before."""
    from excise.evidence.daa.curve import encode_g1

    try:
        offset = read_sensor_message(evidence.message).list_offset
        pseudonym = Signature.from_bytes(evidence.signature).pseudonym
    except ExciseError:
        return None
    if offset == 0:
        return None
    return offset, encode_g1(pseudonym).hex() if pseudonym is not None else None


def _answer(kept: StoredTransaction, state: Checkpoint | None) -> Answer:
    return Answer(
        transaction=kept.id,
        outcome=kept.outcome.value,
        reasons=[str(reason) for reason in kept.result["reasons"]],
        list_end=state.offset if state is not None else 0,
    )


def _result(found: StoredTransaction) -> dict[str, Any]:
    return {
        "transaction": found.id,
        "received_s": found.received_s,
        "outcome": found.outcome.value,
        "pseudonym": found.pseudonym,
        "basename": basename_text(found),
        **found.result,
    }


def _ear_response(found: StoredTransaction, key: EllipticCurvePrivateKey | None) -> Response:
    from excise.attest.sensor.result import sensor_ear

    if key is None:
        raise Problem(
            406,
            kind="media-type",
            title="No EAR",
            detail="this verifier has no key to sign results with",
        )
    return Response(
        sensor_ear(found, key), media_type=EAR_MEDIA_TYPE, headers={"Cache-Control": "no-store"}
    )
