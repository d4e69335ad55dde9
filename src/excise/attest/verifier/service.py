"""The verifier as a service: its application, and the work it does beside requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette

from excise.attest.service import Limits, make_app
from excise.attest.service.database import Database
from excise.attest.verifier.api import Api
from excise.attest.verifier.engine import Engine
from excise.attest.verifier.page import Page
from excise.attest.verifier.records import KEPT_S, SESSION_S, Records
from excise.attest.verifier.signing import load_ring, read_ring
from excise.errors import ExciseError, HostError
from excise.evidence.appraisal import STRICT, AppraisalPolicy
from excise.evidence.corim import CorimOptions, ReferenceStore, accept_corim

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

LIMITS: Final = Limits(body_bytes=1 << 20, bodies_bytes=256 << 20, body_s=20.0)
UPKEEP_S: Final = 5.0
"""How often a service looks for a new signing key and for sessions to forget."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSettings:
    """How a verifier works.

    Attributes:
        policy: What is asked of evidence.
        builds: The builds to appraise against; all when empty.
        corim: What is asked of endorsements that are submitted.
        session_s: How long a session waits for evidence.
        kept_s: How long sessions are kept after their end.
        client_nonces: Whether a client may choose the challenge.
        page: Whether the web page is served, which shows every session.
    """

    policy: AppraisalPolicy = STRICT
    builds: Sequence[str] = ()
    corim: CorimOptions = field(default_factory=CorimOptions)
    session_s: float = SESSION_S
    kept_s: float = KEPT_S
    client_nonces: bool = True
    page: bool = False


def verifier_app(
    database: Database, store: ReferenceStore, *, settings: VerifierSettings
) -> Starlette:
    """Return the application of a verifier; it closes the database when it ends.

    Args:
        database: Where sessions, submitted endorsements and keys are kept.
        store: Endorsements of the operator; those submitted before are added.
        settings: How it works.

    Raises:
        ExciseError: Kept endorsements or keys cannot be used.
    """
    records = Records(database, session_s=settings.session_s, kept_s=settings.kept_s)
    for document in records.documents():
        # What was believed once is taken up again; its signature's time may be over since.
        held = accept_corim(
            document.data, options=None, source=document.corim, profile=document.profile
        )
        store = store.with_build(document.build, held)
    engine = Engine(store, load_ring(records), policy=settings.policy, builds=settings.builds)
    api = Api(engine, records, corim=settings.corim, client_nonces=settings.client_nonces)
    routes: list[BaseRoute] = api.routes()
    if settings.page:
        routes += Page(records, engine).routes()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(_upkeep(engine, records))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await asyncio.to_thread(database.close)

    return make_app(routes, limits=LIMITS, lifespan=lifespan)


async def _upkeep(engine: Engine, records: Records) -> None:
    while True:
        await asyncio.sleep(UPKEEP_S)
        try:
            await records.forget()
            engine.ring = await asyncio.to_thread(read_ring, records)
        except HostError as error:
            _log.warning("upkeep failed: %s", error)
        except ExciseError:
            _log.exception("the signing keys cannot be read")
