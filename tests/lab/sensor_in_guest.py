"""Runs inside a lab guest: transactions that differ from an accepted one in one thing each.

Prints a line of JSON for each: what was changed, the outcome, the reasons.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from excise.attest.daa.folders import member_key, read_credential
from excise.attest.daa.tpm import TpmKey
from excise.attest.sensor.collect import Collector
from excise.attest.sensor.embed import Embedding
from excise.attest.sensor.protocol import SESSIONS, Answer, Opened, SensorEvidence
from excise.attest.sensor.transaction import Membership, send
from excise.attest.service import ServiceClient
from excise.collect.tpm import pcr_reader
from excise.errors import ExciseError, Refused
from excise.evidence.daa import framed_message
from excise.evidence.ima import read_list
from excise.evidence.sensor_message import PURPOSE, SensorMessage

MEASURED = Path("/excise/ext4/measured")
FACE = Embedding.from_bytes(Path(sys.argv[1]).read_bytes())
MEMBER, VERIFIER, STRICTER = Path(sys.argv[2]), sys.argv[3], sys.argv[4]


def tell(changed: str, outcome: str, reasons: list[str]) -> None:
    print(json.dumps({"changed": changed, "outcome": outcome, "reasons": reasons}), flush=True)


def evidence(message: SensorMessage, opened: Opened, membership: Membership) -> SensorEvidence:
    """Sign whatever the message says, with a quote of what the PCRs really are."""
    key, data = membership.key, message.to_bytes()
    assert isinstance(key, TpmKey)
    signature, state = key.quote(
        membership.credential,
        selection={"sha256": tuple(range(11))},
        message=framed_message(purpose=PURPOSE, nonce=opened.nonce, payload=data),
        basename=opened.basename,
    )
    return SensorEvidence(message=data, signature=signature.to_bytes(), attest=state.attest)


def post(client: ServiceClient, session: str, sent: SensorEvidence) -> Answer:
    return client.post(f"{SESSIONS}/{session}/evidence", sent, Answer)


def attempt(
    changed: str,
    change: Callable[[SensorMessage], SensorMessage],
    *,
    collect: Callable[[], SensorMessage],
    membership: Membership,
    client: ServiceClient,
) -> None:
    opened = client.post(SESSIONS, {}, Opened)
    answer = post(client, opened.session, evidence(change(collect()), opened, membership))
    tell(changed, answer.outcome, answer.reasons)


def other_pcr(message: SensorMessage) -> SensorMessage:
    sha256 = {**message.pcrs["sha256"], 10: bytes(32)}
    return dataclasses.replace(message, pcrs={**message.pcrs, "sha256": sha256})


def without_an_entry(message: SensorMessage) -> SensorMessage:
    data = message.list_entries
    ends = [row.end for row in read_list(data)]
    middle = len(ends) // 2
    left = data[: ends[middle - 1]] + data[ends[middle] :]
    digest = hashlib.sha512(left).digest()
    return dataclasses.replace(message, list_entries=left, list_sha512=digest)


def replay(message: SensorMessage, membership: Membership, client: ServiceClient) -> None:
    opened = client.post(SESSIONS, {}, Opened)
    sent = evidence(message, opened, membership)
    tell("nothing", (answer := post(client, opened.session, sent)).outcome, answer.reasons)
    try:
        post(client, opened.session, sent)
    except Refused as error:
        tell("the session, used again", "REFUSED", [error.reason])
    again = post(client, client.post(SESSIONS, {}, Opened).session, sent)
    tell("the evidence, sent again", again.outcome, again.reasons)


def when_it_answers(url: str) -> ServiceClient:
    """Return a client of a verifier that is being started."""
    for _ in range(300):
        client = ServiceClient(url)
        client.__enter__()
        try:
            client.post(SESSIONS, {}, Opened)
        except ExciseError:
            client.__exit__(None, None, None)
            time.sleep(0.5)
        else:
            return client
    raise SystemExit("the stricter verifier does not answer")


def collect_on(key: TpmKey) -> None:
    """Tell how often the list is read for entries that came after a message, and for none."""
    sizes: list[int] = []
    real = os.read

    def read(descriptor: int, size: int) -> bytes:
        sizes.append(len(data := real(descriptor, size)))
        return data

    def reads(collector: Collector) -> tuple[int, SensorMessage]:
        sizes.clear()
        message = collector.collect(FACE)
        collector.acknowledge(message.list_end)
        return len(sizes), message

    pcrs = pcr_reader(key.tpm)
    with Collector(pcrs=pcrs) as collector, Collector(pcrs=pcrs, whole_log=True) as whole:
        os.read = read
        _, head = reads(collector)
        for number in range(3):  # content that was not measured before
            MEASURED.write_text(f"{number}")
            MEASURED.read_text()
        news, added = reads(collector)
        nothing, _ = reads(collector)
        os.read = real
        all_of_it = whole.collect(FACE).list_entries
    assert all_of_it.startswith(head.list_entries + added.list_entries)
    count = len(list(read_list(added.list_entries)))
    tell("3 entries, added", f"{news} reads", [f"{count} entries"])
    tell("no entry, added", f"{nothing} reads", [])


def connect(host: str, port: int) -> None:
    """Tell whether the network leads to a place."""
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        tell(f"connect to {host} {port}", "REFUSED", [str(error)])
    else:
        tell(f"connect to {host} {port}", "PASSED", [])


def main() -> None:
    connect("10.0.2.2", 80)  # the host, in other networks of QEMU
    connect("10.0.2.100", 22)
    connect("192.0.2.1", 80)
    with member_key(MEMBER, tcti="device:/dev/tpmrm0") as key, ServiceClient(VERIFIER) as client:
        assert isinstance(key, TpmKey)
        membership = Membership(key=key, credential=read_credential(MEMBER))
        collect_on(key)
        with Collector(pcrs=pcr_reader(key.tpm), whole_log=True) as collector:

            def collect() -> SensorMessage:
                return collector.collect(FACE)

            for changed, change in (
                ("a PCR in the message", other_pcr),
                ("an entry, removed", without_an_entry),
            ):
                attempt(changed, change, collect=collect, membership=membership, client=client)
            replay(collect(), membership, client)
            stricter = when_it_answers(STRICTER)
            answer = send(collect().to_bytes(), membership=membership, client=stricter)
            tell("the key, revoked", answer.outcome, answer.reasons)
            stricter.__exit__(None, None, None)
            # The last, because a TPM forgets nothing until its reset.
            extend(key)
            answer = send(collect().to_bytes(), membership=membership, client=client)
            tell("PCR 10, extended", answer.outcome, answer.reasons)


def extend(key: TpmKey) -> None:
    from tpm2_pytss import ESYS_TR, TPM2_ALG, TPML_DIGEST_VALUES, TPMT_HA, TPMU_HA

    value = TPMT_HA(hashAlg=TPM2_ALG.SHA256, digest=TPMU_HA(sha256=b"\x01" * 32))
    key.tpm.pcr_extend(ESYS_TR.PCR10, TPML_DIGEST_VALUES([value]))


main()
