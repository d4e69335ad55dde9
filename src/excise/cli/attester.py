"""`excise attester`: make evidence, have it verified, and print how long each step took."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from excise.cli.options import (
    CaOption,
    JsonOption,
    print_json,
    read_input,
    refuse_idle,
    written_later,
)
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.attest.attester import Attested, Attester, PackedKey, Verification

_DEFAULT_URL = "http://127.0.0.1:8080"
SignerKind = Literal["software", "tpm", "tpm-wrapped"]


def attester(
    context: typer.Context,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="The verifier.")] = _DEFAULT_URL,
    no_server: Annotated[
        bool, typer.Option("--no-server", help="Make evidence for a random challenge, and stop.")
    ] = False,
    loop: Annotated[int, typer.Option("--loop", min=1, help="How many attestations.")] = 1,
    perf: Annotated[
        bool,
        typer.Option("--perf", help="Print RA_PERF lines on stderr. [default: as RA_PERF says]"),
    ] = False,
    key: Annotated[SignerKind, typer.Option("--key", help="Where the key is.")] = "software",
    key_hex: Annotated[
        str | None,
        typer.Option(
            "--key-hex",
            metavar="HEX",
            help="The key: 32 bytes, or PubX, PubY and key. [default: the embedded one]",
            show_default=False,
        ),
    ] = None,
    pubx_hex: Annotated[
        str | None,
        typer.Option("--pubx-hex", metavar="HEX", help="Its public x.", show_default=False),
    ] = None,
    puby_hex: Annotated[
        str | None,
        typer.Option("--puby-hex", metavar="HEX", help="Its public y.", show_default=False),
    ] = None,
    generate: Annotated[
        bool, typer.Option("--generate-key", help="Print a new key and stop.")
    ] = False,
    tcti: Annotated[
        str | None,
        typer.Option(
            "--tcti", metavar="TCTI", help="The TPM, as for tpm2-tools.", show_default=False
        ),
    ] = None,
    ta: Annotated[
        list[str] | None,
        typer.Option(
            "--ta",
            metavar="FILE",
            help="What hash_ta measures. [default: this program's files]",
            show_default=False,
        ),
    ] = None,
    tee: Annotated[
        list[str] | None,
        typer.Option(
            "--tee",
            metavar="FILE",
            help="What hash_tee measures. [default: the Python that runs it]",
            show_default=False,
        ),
    ] = None,
    ta_version: Annotated[
        str,
        typer.Option(
            "--ta-version",
            metavar="TEXT",
            help="Version to state of what --ta names. [default: none]",
            show_default=False,
        ),
    ] = "",
    tee_version: Annotated[
        str,
        typer.Option(
            "--tee-version",
            metavar="TEXT",
            help="Version to state of what --tee names. [default: none]",
            show_default=False,
        ),
    ] = "",
    profile: Annotated[str, typer.Option("--profile", help="PSA profile: 1, 2 or tfm.")] = "2",
    implementation: Annotated[
        str | None,
        typer.Option(
            "--implementation-id", metavar="ID", help="32 characters or 64 hexadecimal digits."
        ),
    ] = None,
    verifier_key: Annotated[
        str | None,
        typer.Option(
            "--verifier-key",
            metavar="FILE",
            help="Key of the verifier's results. [default: asked of the verifier]",
            show_default=False,
        ),
    ] = None,
    ca: CaOption = None,
    references: Annotated[
        str | None,
        typer.Option(
            "--write-references",
            metavar="FOLDER",
            help="Write the templates of this attester's reference values, and stop.",
            show_default=False,
        ),
    ] = None,
    build: Annotated[
        str, typer.Option("--build", help="Name of the build in those templates.")
    ] = "attester",
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Keep the last token.",
            show_default=False,
            callback=written_later,
        ),
    ] = None,
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            metavar="FILE",
            help="Keep the last result (EAR), for `excise verify ear`.",
            show_default=False,
            callback=written_later,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Attest: get a challenge, sign what runs here, have it verified; exit 1 unless affirming.

    Example: excise attester --url http://127.0.0.1:8080 --loop 31 --perf
    """
    from excise.attest.attester import generate_key, parse_key
    from excise.capture.store import write_durably

    _refuse_idle(context)
    if result is not None and no_server:
        raise UsageError("without a verifier there is no result", hint="Leave --no-server out")
    if (pubx_hex or puby_hex) and key_hex is None:
        raise UsageError("--pubx-hex and --puby-hex are of a key", hint="Give --key-hex too")
    if generate:
        _print_key(generate_key(key, tcti=tcti), as_json=as_json)
        return
    packed = None
    if key_hex is not None:
        packed = parse_key(key_hex, pubx_hex=pubx_hex, puby_hex=puby_hex)
    with _attester(
        key, packed, tcti=tcti, perf=perf, ta=(ta, ta_version), tee=(tee, tee_version),
        profile=profile, implementation=implementation,
    ) as made:  # fmt: skip
        if references is not None:
            _write_references(made, references, build)
            return
        with ExitStack() as stack:
            verifier = None
            if not no_server:
                verifier = stack.enter_context(_verification(url, verifier_key, ca))
            outcomes = _loop(made, verifier, loop, quiet=as_json)
    if output is not None:
        write_durably(Path(output), outcomes[-1].token)
    if result is not None:
        write_durably(Path(result), f"{outcomes[-1].result}\n".encode())
    _conclude(outcomes, as_json=as_json)


def _refuse_idle(context: typer.Context) -> None:
    """Refuse options that the rest of the command line leaves without an effect.

    Raises:
        UsageError: There is one.
    """
    given = context.params
    verifying = ("url", "no_server", "loop", "verifier_key", "ca", "output", "result")
    if not given["references"]:
        refuse_idle(
            context, ["build"], "of templates, and none are written", hint="Give --write-references"
        )
    if given["generate"]:
        components = ("ta", "tee", "ta_version", "tee_version")
        made_of = ("key_hex", "pubx_hex", "puby_hex", *components, "profile", "implementation")
        refuse_idle(
            context,
            (*verifying, *made_of, "perf", "references", "build"),
            "not for --generate-key, which makes a key and stops",
        )
    elif given["references"]:
        refuse_idle(context, verifying, "not for --write-references, which attests nothing")
    for option in ("ta", "tee"):
        if not given[option]:
            refuse_idle(
                context,
                [f"{option}_version"],
                "of files, and none were given",
                hint=f"Give --{option} FILE",
            )
    if given["no_server"]:
        refuse_idle(
            context, ("url", "verifier_key", "ca"), "of a verifier, and --no-server asks none"
        )
    if given["key"] == "software":
        refuse_idle(context, ["tcti"], "of a key in a TPM", hint="Give --key tpm")


@contextmanager
def _attester(
    key: SignerKind,
    packed: PackedKey | None,
    *,
    tcti: str | None,
    perf: bool,
    ta: tuple[list[str] | None, str],
    tee: tuple[list[str] | None, str],
    profile: str,
    implementation: str | None,
) -> Iterator[Attester]:
    from excise.attest.attester import (
        EMBEDDED_WARNING,
        IMPLEMENTATION_ID,
        Attester,
        application_of,
        host_boot_seed,
        labels_of,
        mode_of,
        open_signer,
        system_of,
    )
    from excise.cli.corim import implementation_id
    from excise.cli.verify_token import profile_of
    from excise.perf import Recorder

    chosen = profile_of(profile)
    named = implementation_id(implementation) if implementation else IMPLEMENTATION_ID
    recorder, pta_recorder = (
        Recorder(key=mode_of(key, packed), enabled=True if perf else None) for _ in range(2)
    )
    with ExitStack() as stack:
        # Both happen once, before the loop, as the session with the application does.
        with recorder.measure("host", "teec_init", **labels_of(key)):
            application = application_of([Path(name) for name in ta[0] or ()], version=ta[1])
            system = system_of([Path(name) for name in tee[0] or ()], version=tee[1])
        with recorder.measure("host", "teec_open_session", **labels_of(key)):
            signer = stack.enter_context(open_signer(key, packed=packed, tcti=tcti))
        recorder.flush()
        if key == "software" and packed is None:
            typer.echo(f"excise: {EMBEDDED_WARNING}", err=True)
        yield Attester(
            signer,
            application=application,
            system=system,
            profile=chosen,
            perf=recorder,
            pta_perf=pta_recorder,
            implementation_id=named,
            boot_seed=host_boot_seed(),
        )


@contextmanager
def _verification(url: str, key: str | None, ca: Path | None) -> Iterator[Verification]:
    from excise.attest.attester import verification
    from excise.evidence.cose_key import read_key

    trusted = read_key(read_input(key), source=key) if key is not None else None
    with verification(url, key=trusted, ca_file=ca) as connected:
        yield connected


def _loop(
    made: Attester, verifier: Verification | None, count: int, *, quiet: bool
) -> list[Attested]:
    from excise.attest.attester import attest

    def show(token: bytes) -> None:
        if not quiet:
            typer.echo(token.hex())

    from rich.console import Console
    from rich.progress import track

    # Marks on the terminal are progress enough, and a bar would be drawn through the evidence.
    shown = count > 1 and sys.stderr.isatty() and not (made.perf.enabled or sys.stdout.isatty())
    console = Console(stderr=True)
    rounds = track(range(count), "attesting", console=console, disable=not shown, transient=True)
    outcomes: list[Attested] = []
    try:
        for _ in rounds:
            outcomes.append(attest(made, verifier, show=show))  # noqa: PERF401  kept if interrupted
    except KeyboardInterrupt:
        if outcomes:
            typer.echo(_told(outcomes), err=True)
        raise
    return outcomes


def _told(outcomes: list[Attested]) -> str:
    counts = _counts(outcomes)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{len(outcomes)} attestation{'s' if len(outcomes) != 1 else ''}: {told}"


def _counts(outcomes: list[Attested]) -> Counter[str]:
    return Counter(_word(one) for one in outcomes)


def _word(one: Attested) -> str:
    if one.status is None:
        return "not verified"
    return one.status.value if one.believed else "not to be believed"


def _print_key(packed: PackedKey, *, as_json: bool) -> None:
    named = {
        "key-hex": packed.hex(),
        "pubx-hex": packed.point[:32].hex(),
        "puby-hex": packed.point[32:].hex(),
        "mode": "black" if packed.wrapped else "plain",
    }
    if as_json:
        print_json(named)
    else:
        for name, value in named.items():
            typer.echo(f"{name}: {value}")


def _write_references(made: Attester, folder: str, build: str) -> None:
    from excise.evidence.corim import write_templates

    write_templates(Path(folder), made.reference_templates(build))
    typer.echo(f"{folder}: the templates of build {build}", err=True)


def _conclude(outcomes: list[Attested], *, as_json: bool) -> None:
    affirming = all(one.affirming for one in outcomes)
    if as_json:
        last = outcomes[-1]
        print_json(
            {
                "attestations": len(outcomes),
                "statuses": _counts(outcomes),
                "nonce": last.nonce.hex(),
                "token": last.token.hex(),
                "result": last.result or None,
                "checks": [check.as_dict() for check in last.checks],
            }
        )
    else:
        from excise.report.plain import visible

        typer.echo(_told(outcomes), err=True)
        told = next((one for one in reversed(outcomes) if not one.affirming), outcomes[-1])
        for check in told.checks:
            if check.outcome == "FAILED":
                typer.echo(visible(f"  {check.outcome} {check.id}  {check.got}"), err=True)
                if check.detail:
                    typer.echo(visible(f"    {check.detail}"), err=True)
    if not affirming:
        raise typer.Exit(1)
