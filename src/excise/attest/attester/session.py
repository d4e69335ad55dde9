"""One attestation after another: challenge, evidence, result, each step measured."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from excise.attest.attester.evidence import Attester
from excise.evidence.base64text import decode_base64
from excise.evidence.checks import Check, Outcome, verdict_of
from excise.evidence.cose_key import VerificationKey, read_key
from excise.evidence.ear import verify_ear
from excise.evidence.trust_vector import Status

if TYPE_CHECKING:
    from excise.attest.service import ServiceClient

MEDIA_TYPE: Final = "application/psa-attestation-token"
NONCE_BYTES: Final = 32
_NEW_SESSION: Final = "/challenge-response/v1/newSession"
_INFO: Final = "/.well-known/veraison/verification"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attested:
    """What one attestation gave.

    Attributes:
        nonce: The challenge.
        token: The evidence.
        result: The signed result; empty without a server.
        status: Its status; None without a server.
        checks: What was checked of the result.
    """

    nonce: bytes
    token: bytes
    result: str = ""
    status: Status | None = None
    checks: tuple[Check, ...] = ()

    @property
    def believed(self) -> bool:
        """Return whether all but the status holds: else the status is anybody's word."""
        failed = {check.id for check in self.checks if check.outcome is Outcome.FAILED}
        return self.status is not None and failed <= {"ear.status"}

    @property
    def affirming(self) -> bool:
        """Return whether the result holds and is affirming; true without a server."""
        if self.status is None:
            return True
        return verdict_of(self.checks) is Outcome.PASSED


class _Opened(msgspec.Struct, frozen=True):
    nonce: str


class _Answered(msgspec.Struct, frozen=True):
    result: str


class _Info(msgspec.Struct, frozen=True, rename="kebab"):
    ear_verification_key: dict[str, Any]


class Verification:
    """A verifier, by Veraison's interface.

    Args:
        client: A client of it.
        key: The verifier's public key; None asks the verifier, which is as good as the connection.

    Raises:
        ExciseError: The verifier does not answer, or tells no key.
    """

    def __init__(self, client: ServiceClient, *, key: VerificationKey | None = None) -> None:
        self._client = client
        self._key = key or self._ask_key()

    def new_session(self) -> tuple[str, bytes]:
        """Return a session's path and challenge.

        Raises:
            ExciseError: The verifier does not answer, or answers with a problem.
        """
        headers, body = self._client.ask("POST", f"{_NEW_SESSION}?nonceSize={NONCE_BYTES}")
        nonce = decode_base64(self._client.decode(body, _Opened).nonce, field="nonce")
        location = headers.get("location", "")
        return f"{_NEW_SESSION.rpartition('/')[0]}/{location.lstrip('/')}", nonce

    def submit(self, path: str, token: bytes) -> str:
        """Return the signed result for evidence.

        Raises:
            ExciseError: The verifier does not answer, or answers with a problem.
        """
        _, body = self._client.ask("POST", path, token, media_type=MEDIA_TYPE)
        return self._client.decode(body, _Answered).result

    def check(self, result: str, nonce: bytes) -> tuple[Status, tuple[Check, ...]]:
        """Return the status of a result and the checks made on it."""
        found = verify_ear(result, self._key, nonce=nonce)
        return found.status, found.checks

    def _ask_key(self) -> VerificationKey:
        told = self._client.get(_INFO, _Info)
        return read_key(msgspec.json.encode(told.ear_verification_key), source="verifier's key")


@contextmanager
def verification(
    url: str, *, key: VerificationKey | None = None, ca_file: Path | None = None
) -> Iterator[Verification]:
    """Connect to a verifier for a block.

    Raises:
        ExciseError: It does not answer, or URL or certificates cannot be used.
    """
    from excise.attest.service import ServiceClient

    with ServiceClient(url, ca_file=ca_file) as client:
        yield Verification(client, key=key)


def attest(
    attester: Attester,
    verifier: Verification | None,
    *,
    show: Callable[[bytes], None],
) -> Attested:
    """Return the outcome of one attestation; `total` is its last mark.

    Args:
        attester: Makes the token.
        verifier: Gives the challenge and the result; None for a random challenge and no result.
        show: Prints the evidence, which `print_evidence` measures.
    """
    measure, labels = attester.perf.measure, attester.labels
    path, result = "", ""
    with measure("host", "total", **labels):
        if verifier is None:
            nonce = secrets.token_bytes(NONCE_BYTES)
        else:
            with measure("host", "veraison_new_session", **labels):
                path, nonce = verifier.new_session()
        with measure("host", "evidence_get", **labels):
            token = attester.token(nonce)
        with measure("host", "print_evidence", **labels):
            show(token)
        if verifier is not None:
            with measure("host", "veraison_post_evidence", **labels):
                result = verifier.submit(path, token)
    attester.perf.flush()
    if verifier is None:
        return Attested(nonce=nonce, token=token)
    status, checks = verifier.check(result, nonce)
    return Attested(nonce=nonce, token=token, result=result, status=status, checks=checks)
