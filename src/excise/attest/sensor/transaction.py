"""A transaction: capture, embed, collect, send; each step timed, all handed over in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from excise.attest.daa.keys import MemberKey, sign
from excise.attest.daa.tpm import TpmKey
from excise.attest.sensor.collect import Collector
from excise.attest.sensor.embed import Embedder, Embedding
from excise.attest.sensor.protocol import SESSIONS, Answer, Opened, SensorEvidence
from excise.attest.sensor.sources import ImageSource
from excise.attest.service import ServiceClient
from excise.errors import HostError, Refused
from excise.evidence.daa import Credential, Signature, framed_message
from excise.evidence.sensor_message import PURPOSE, read_sensor_message
from excise.perf import Recorder

_ATTEMPTS: Final = 3
_QUOTED_BANKS: Final = ("sha256", "sha384", "sha512", "sha1")
_QUOTED_PCRS: Final = range(11)  # those of the boot_aggregate, and IMA's
LAYER: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a sensor signs with.

    Attributes:
        key: The member's key, in a TPM or in software.
        credential: The issuer's credential for it.
    """

    key: MemberKey
    credential: Credential


def send(message: bytes, *, membership: Membership, client: ServiceClient) -> Answer:
    """Sign a message for a fresh nonce of the verifier, send it, and return the answer.

    Args:
        message: As `SensorMessage.to_bytes` gives it.
        membership: What to sign with.
        client: The verifier.

    Raises:
        Refused: The session is not taken, or the verifier wants the list from another offset.
        HostError: The verifier does not answer, or the TPM refuses.
    """
    opened = client.post(SESSIONS, {}, Opened)
    framed = framed_message(purpose=PURPOSE, nonce=opened.nonce, payload=message)
    signature, attest = _signed(membership, message, framed, opened.basename)
    evidence = SensorEvidence(message=message, signature=signature.to_bytes(), attest=attest)
    return client.post(f"{SESSIONS}/{opened.session}/evidence", evidence, Answer)


class PcrsMovedError(HostError):
    """A PCR is not any more what the message says: collect again."""


def _signed(
    membership: Membership, message: bytes, framed: bytes, basename: bytes | None
) -> tuple[Signature, bytes | None]:
    """Return the signature; a TPM's quote of the message's PCRs, where the key can quote."""
    key = membership.key
    if not isinstance(key, TpmKey) or not key.quoting:
        return sign(key, membership.credential, message=framed, basename=basename), None
    pcrs = read_sensor_message(message).pcrs
    bank = next((bank for bank in _QUOTED_BANKS if bank in pcrs), min(pcrs, default=""))
    selection = {bank: tuple(index for index in _QUOTED_PCRS if index in pcrs.get(bank, {}))}
    signature, state = key.quote(
        membership.credential, selection=selection, message=framed, basename=basename
    )
    if any(pcrs[bank][index] != value for index, value in state.pcrs[bank].items()):
        raise PcrsMovedError(
            "a PCR has moved since the message was collected", hint="Collect again"
        )
    return signature, state.attest


@dataclass(slots=True, kw_only=True)
class Sensor:
    """A sensor at work: everything it keeps open between transactions.

    Attributes:
        source: Where images come from.
        embedder: What makes embeddings.
        collector: What reads the list and the PCRs; entered by the caller.
        membership: What it signs with.
        client: The verifier.
        perf: Where the steps' times go: `capture`, `embed`, `collect`, `send` and `total`.
    """

    source: ImageSource
    embedder: Embedder
    collector: Collector
    membership: Membership
    client: ServiceClient
    perf: Recorder = field(default_factory=Recorder)

    def transact(self) -> Answer:
        """Make one transaction.

        Raises:
            Refused: There is no face in the image, or the verifier refuses the session.
            HostError: A camera, list, TPM or verifier that does not answer.
        """
        measure = self.perf.measure
        with measure(LAYER, "total"):
            with measure(LAYER, "capture"):
                image = self.source.capture()
            with measure(LAYER, "embed"):
                embedding = self.embedder.embed(image)
            answer = self._collect_and_send(embedding)
        if answer.outcome == "PASSED":
            self.collector.acknowledge(answer.list_end)
        return answer

    def _collect_and_send(self, embedding: Embedding) -> Answer:
        """Collect and send; once more, from where the verifier is, if it is elsewhere."""
        for attempt in range(_ATTEMPTS):
            with self.perf.measure(LAYER, "collect"):
                message = self.collector.collect(embedding).to_bytes()
            try:
                with self.perf.measure(LAYER, "send"):
                    return send(message, membership=self.membership, client=self.client)
            except PcrsMovedError:
                if attempt + 1 == _ATTEMPTS:
                    raise
            except Refused as error:
                known = _known_list_end(error)
                if known is None or attempt + 1 == _ATTEMPTS:
                    raise
                self.collector.acknowledge(known)
        raise AssertionError  # the loop returns or raises


def _known_list_end(error: Refused) -> int | None:
    """Return where the verifier's list ends, if that is why it refuses."""
    for line in error.differences:
        name, _, value = line.partition("=")
        if name == "known_list_end" and value.isdecimal():
            return int(value)
    return None
