"""One attestation after another: challenge, evidence, result, each step measured."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from excise.attest.attester.evidence import Attester
from excise.errors import FormatError, HostError
from excise.evidence.base64text import decode_base64
from excise.evidence.checks import Check, Outcome, verdict_of
from excise.evidence.cose_key import VerificationKey, read_key
from excise.evidence.ear import verify_ear
from excise.evidence.trust_vector import Status

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
    def affirming(self) -> bool:
        """Return whether the result holds and is affirming; true without a server."""
        if self.status is None:
            return True
        return verdict_of(self.checks) is Outcome.PASSED


class Verification:
    """A verifier at a URL, by Veraison's interface.

    Args:
        client: An HTTP client whose base is the verifier.
        key: The verifier's public key; None asks the verifier, which is as good as the connection.
    """

    def __init__(self, client: Any, *, key: VerificationKey | None = None) -> None:
        self._client = client
        self._key = key or self._ask_key()

    def new_session(self) -> tuple[str, bytes]:
        """Return a session's path and challenge.

        Raises:
            HostError: The verifier does not answer, or answers with a problem.
        """
        answer = self._post(f"{_NEW_SESSION}?nonceSize={NONCE_BYTES}")
        location = str(answer.headers.get("location", ""))
        nonce = decode_base64(_member(answer, "nonce"), field="nonce")
        return f"{_NEW_SESSION.rpartition('/')[0]}/{location.lstrip('/')}", nonce

    def submit(self, path: str, token: bytes) -> str:
        """Return the signed result for evidence."""
        answer = self._post(path, content=token, headers={"Content-Type": MEDIA_TYPE})
        return str(_member(answer, "result"))

    def check(self, result: str, nonce: bytes) -> tuple[Status, tuple[Check, ...]]:
        """Return the status of a result and the checks made on it."""
        found = verify_ear(result, self._key, nonce=nonce)
        return found.status, found.checks

    def _ask_key(self) -> VerificationKey:
        answer = self._ask("GET", _INFO)
        return read_key(json.dumps(_member(answer, "ear-verification-key")).encode())

    def _post(self, path: str, **options: Any) -> Any:
        return self._ask("POST", path, **options)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        import httpx

        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise HostError(
                f"the verifier does not answer ({error})",
                source=str(self._client.base_url),
                hint="Is it running? --no-server makes evidence without one",
            ) from None
        if answer.is_success:
            return answer
        try:
            told = answer.json()
        except ValueError:
            told = {}
        detail = told.get("detail") or told.get("title") if isinstance(told, dict) else ""
        raise HostError(
            f"the verifier answers {answer.status_code}: {detail or 'no reason given'}",
            source=f"{str(self._client.base_url).rstrip('/')}{path}",
        )


def _member(answer: Any, name: str) -> Any:
    try:
        value = answer.json()
    except ValueError:
        value = None
    if not isinstance(value, dict) or name not in value:
        raise FormatError(f"the verifier's answer has no {name!r}", source=str(answer.url))
    return value[name]


@contextmanager
def verification(
    url: str, *, key: VerificationKey | None = None, ca_file: Path | None = None
) -> Iterator[Verification]:
    """Connect to a verifier for a block.

    Raises:
        HostError: It does not answer, or httpx is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise HostError("the client needs httpx", hint="pip install 'excise[attest]'") from error
    verify: Any = True
    if ca_file is not None:
        import ssl

        verify = ssl.create_default_context(cafile=str(ca_file))
    with httpx.Client(base_url=url, timeout=30.0, verify=verify) as client:
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
