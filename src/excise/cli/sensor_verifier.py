"""`excise sensor verifier`: the service that sensors send their transactions to."""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.daa_options import group_verifier
from excise.cli.options import JsonOption, read_input
from excise.cli.serving import ListenOption, TlsCertificateOption, TlsKeyOption, serve_app
from excise.cli.verify import ExcludeOption, PolicyOption, PolicyRootOption, read_policy


def verifier(
    group: Annotated[
        str,
        typer.Option("--group", metavar="FILE", help="The group's key: ipk.bin, or gpk.bin."),
    ],
    rule: Annotated[
        str | None,
        typer.Option(
            "--group-rule",
            metavar="FILE",
            help="group.json of the issuer: what its keys prove.",
            show_default=False,
        ),
    ] = None,
    database: Annotated[
        str, typer.Option("--database", help="A file (SQLite), or postgresql://HOST/NAME.")
    ] = "sensor-verifier.sqlite",
    basename: Annotated[
        str | None,
        typer.Option(
            "--basename",
            help="Know sensors again by a pseudonym under this name: their lists are then sent "
            "and verified by parts.",
            show_default=False,
        ),
    ] = None,
    policy: PolicyOption = None,
    policy_root: PolicyRootOption = None,
    exclude: ExcludeOption = None,
    revoked_keys: Annotated[
        str | None,
        typer.Option(
            "--revoked-keys", metavar="FILE", help="Secret keys to refuse.", show_default=False
        ),
    ] = None,
    revoked_pseudonyms: Annotated[
        str | None,
        typer.Option(
            "--revoked-pseudonyms", metavar="FILE", help="Pseudonyms to refuse.", show_default=False
        ),
    ] = None,
    trust_stated_pcrs: Annotated[
        bool,
        typer.Option(
            "--trust-stated-pcrs",
            help="Accept PCR values that are the sensor's word, and not its TPM's, as the original "
            "did.",
        ),
    ] = False,
    signing_key: Annotated[
        str | None,
        typer.Option(
            "--signing-key",
            metavar="FILE",
            help="Key on P-256 (PEM) to sign EARs with.",
            show_default=False,
        ),
    ] = None,
    listen: ListenOption = "127.0.0.1:8088",
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    session_s: Annotated[
        float, typer.Option("--session-s", min=1, help="Seconds a transaction may take.")
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Verify transactions of sensors over HTTP until interrupted.

    Freshness, signature, revocation, the list against the PCRs, boot_aggregate and reference
    digests are checked; evidence and result are on disk before the sensor is answered.

    Example: excise sensor verifier --group ipk.bin --basename door-7 --policy known.sha256
    """
    from excise.attest.sensor.records import SensorRecords
    from excise.attest.sensor.verifier import SensorVerifier, sensor_app
    from excise.attest.service import SessionStore
    from excise.attest.service.database import Database
    from excise.evidence.cose_key import read_private_key
    from excise.evidence.sensor import SensorPolicy

    daa = group_verifier(
        group, rule=rule, revoked_keys=revoked_keys, revoked_pseudonyms=revoked_pseudonyms
    )
    references = read_policy(policy, exclude, None, policy_root)
    key = None
    if signing_key is not None:
        key = read_private_key(read_input(signing_key), source=signing_key, curve="P-256")
    opened = Database(database)
    service = SensorVerifier(
        policy=SensorPolicy(daa=daa, references=references, trust_stated_pcrs=trust_stated_pcrs),
        records=SensorRecords(opened),
        sessions=SessionStore(lifetime_s=session_s),
        basename=basename.encode() if basename is not None else None,
        signing_key=key,
    )
    serve_app(
        sensor_app(service, database=opened),
        listen=listen,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        as_json=as_json,
    )
