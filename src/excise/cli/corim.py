"""`excise corim`: make, show and check reference values and trust anchors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from excise.cli.options import JsonOption, print_json, read_input, refuse_idle
from excise.cli.verify import ReportOption, conclude
from excise.errors import FormatError, UsageError
from excise.units import parse_hex

app = typer.Typer(
    no_args_is_help=True, help="Make, show and check reference values and trust anchors (CoRIM)."
)

OutputOption = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - for stdout.")
]


@app.command("build")
def build(
    context: typer.Context,
    templates: Annotated[
        list[str],
        typer.Argument(
            metavar="TEMPLATE...",
            help="A manifest template and CoMID templates (JSON), or one folder of them.",
        ),
    ],
    output: OutputOption,
    name: Annotated[
        str | None,
        typer.Option(
            "--build", metavar="NAME", help="Which build of a folder.", show_default=False
        ),
    ] = None,
    sign: Annotated[
        str | None,
        typer.Option(
            "--sign", metavar="FILE", help="Private key (PEM) to sign with.", show_default=False
        ),
    ] = None,
    signer: Annotated[
        str, typer.Option("--signer", help="Name of the signer, in a signed CoRIM.")
    ] = "",
    days: Annotated[
        int, typer.Option("--days", min=1, help="How long a signature is valid.")
    ] = 365,
    as_json: JsonOption = False,
) -> None:
    """Turn JSON templates into a CoRIM, signed if a key is given.

    Example: excise corim build provisioning/data --build imx-caam -o imx-caam.cbor
    """
    from excise.evidence.corim import sign_corim
    from excise.evidence.cose_key import read_private_key
    from excise.report.write import open_output

    if sign is None:
        refuse_idle(
            context, ("signer", "days"), "of a signature, and there is none", hint="Give --sign KEY"
        )
    if as_json and output == "-":
        raise UsageError("--json and -o - both write to standard output")
    with open_output(output) as opened:
        data = _built(templates, name)
        if sign is not None:
            if not signer:
                raise UsageError("a signature names its signer", hint="Give --signer NAME")
            private = read_private_key(read_input(sign), source=sign)
            until = int(time.time()) + days * 86_400
            data = sign_corim(data, private, signer=signer, not_after=until)
        opened.write(data)
    if as_json:
        print_json({"file": output, "bytes": len(data), "signed": sign is not None})
    elif output != "-":
        kind = "signed CoRIM" if sign is not None else "CoRIM"
        typer.echo(f"{output}: {kind} of {len(data)} bytes", err=True)


@app.command("show")
def show(
    document: Annotated[
        str, typer.Argument(metavar="CORIM", help="A CoRIM, or a CoMID alone; - for stdin.")
    ],
    as_json: JsonOption = False,  # noqa: ARG001 - it is JSON; with it errors are, too
) -> None:
    """Print a CoRIM as the JSON templates it could have been made of.

    Example: excise corim show imx-caam.cbor
    """
    from excise.evidence.corim import is_comid, read_comid, read_corim

    data = _document(document)
    if is_comid(data):
        print_json(read_comid(data, source=document).as_json())
        typer.echo(f"{document}: a CoMID, one tag of a CoRIM: nothing signs it", err=True)
        return
    print_json(read_corim(data, source=document).as_json())


@app.command("check")
def check(
    document: Annotated[str, typer.Argument(metavar="CORIM", help="A CoRIM; - for stdin.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="FILE", help="Key that may have signed it.", show_default=False
        ),
    ] = None,
    unsigned: Annotated[
        bool, typer.Option("--allow-unsigned", help="Accept a CoRIM that nobody signed.")
    ] = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a CoRIM: signature, validity, profile, and every triple the profile has rules for.

    Example: excise corim check imx-caam.cose --key vendor.pem
    """
    from excise.evidence.checks import AppraisalResult
    from excise.evidence.corim import (
        KNOWN_PROFILES,
        CorimOptions,
        check_content,
        read_corim,
        verify_corim,
    )
    from excise.evidence.cose_key import read_key

    corim = read_corim(_document(document), source=document)
    options = CorimOptions(
        keys=tuple(read_key(read_input(name), source=name) for name in key or ()),
        require_signed=not unsigned,
        profiles=KNOWN_PROFILES,
    )
    found = verify_corim(corim, options=options)
    checks = (*found.checks, check_content(corim))
    result = AppraisalResult(subject="corim", checks=checks, facts=found.facts)
    conclude([result], report=report, as_json=as_json)


@app.command("new")
def new(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to write templates.")],
    name: Annotated[str, typer.Option("--build", metavar="NAME", help="Name of the build.")],
    implementation: Annotated[
        str,
        typer.Option(
            "--implementation-id", metavar="ID", help="32 bytes: text, or hex of 64 digits."
        ),
    ],
    component: Annotated[
        list[str],
        typer.Option(
            "--component",
            metavar="TYPE[@VERSION]=FILE|HEX",
            help="A component and the file, or the SHA-256, it measures. May be repeated.",
        ),
    ],
    key: Annotated[
        list[str],
        typer.Option("--key", metavar="FILE", help="A device's key; its hash is the instance ID."),
    ],
    signer: Annotated[
        str,
        typer.Option("--signer-id", metavar="HEX", help="Who signed the components: 64 digits."),
    ] = "00" * 32,
    vendor: Annotated[str, typer.Option("--vendor", help="Who makes the device.")] = "excise",
    model: Annotated[str, typer.Option("--model", help="Which device it is.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Write the templates of a build from the files it measures and the keys of its devices.

    Example: excise corim new refs --build qemu --implementation-id qemu-optee-ra-000000000000000001
    --component PRoT@4.6.0=tee.bin --key iak.pem
    """
    from excise.evidence.corim import psa_templates, write_templates
    from excise.evidence.cose_key import read_key

    keys = [read_key(read_input(one), source=one) for one in key]
    files = psa_templates(
        build=name,
        implementation_id=implementation_id(implementation),
        components=[_component(one, parse_hex(signer, option="--signer-id")) for one in component],
        anchors=[(one.instance_id(), one) for one in keys],
        vendor=vendor,
        model=model or name,
    )
    target = Path(folder)
    write_templates(target, files)
    if as_json:
        print_json({"files": [str(target / one) for one in files]})
    else:
        for one in files:
            typer.echo(f"{target / one}: written", err=True)


def implementation_id(text: str) -> bytes:
    """Return an implementation ID given as 32 characters or 64 hexadecimal digits.

    Raises:
        UsageError: It is neither.
    """
    if len(text) == 64:
        return parse_hex(text, option="--implementation-id")
    encoded = text.encode()
    if len(encoded) != 32:
        raise UsageError(f"--implementation-id has {len(encoded)} bytes, and 32 are wanted")
    return encoded


def _document(name: str) -> bytes:
    """Return the bytes of a CoRIM.

    Raises:
        FormatError: It cannot be read, is too large, or is a folder.
    """
    from excise.evidence.corim import MAX_CORIM_BYTES

    if name != "-" and Path(name).is_dir():
        raise FormatError(
            "is a folder, and one CoRIM is wanted",
            source=name,
            hint="Name a file in it; excise corim build makes a CoRIM of a folder of templates",
        )
    return read_input(name, limit_bytes=MAX_CORIM_BYTES)


def _component(text: str, signer: bytes) -> dict[str, Any]:
    from excise.attest.attester import Measured
    from excise.evidence.corim import component_template

    named, separator, held = text.partition("=")
    kind, _, version = named.partition("@")
    if not separator or not kind or not held:
        raise UsageError(
            f"--component {text!r} is not TYPE[@VERSION]=FILE", hint="As PRoT@4.6.0=tee.bin"
        )
    file = Path(held)
    if len(held) == 64 and not file.exists():
        digest = parse_hex(held, option="--component")
    else:
        digest = Measured(kind=kind, files=(file,)).digest()
    return component_template(kind, digest, version=version, signer_id=signer)


def _built(templates: list[str], name: str | None) -> bytes:
    from excise.evidence.corim import build_corim, build_from_folder, builds_in
    from excise.evidence.corim.template import DEFAULT_BUILD, read_template

    paths = [Path(one) for one in templates]
    if len(paths) == 1 and paths[0].is_dir():
        existing = list(builds_in(paths[0]))
        if name is None and len(existing) > 1 and DEFAULT_BUILD not in existing:
            listed = ", ".join(existing)
            raise UsageError("several builds are in it", source=templates[0],
                             hint=f"Give --build, one of {listed}")  # fmt: skip
        chosen = name or (existing[0] if len(existing) == 1 else DEFAULT_BUILD)
        return build_from_folder(paths[0], build=chosen)
    if name is not None:
        raise UsageError("--build chooses among the builds of a folder")
    loaded = [(path.name, read_template(path)) for path in paths]
    manifests = [one for one in loaded if "corim-id" in one[1]]
    if len(manifests) != 1:
        raise UsageError(
            f"{len(manifests)} of the templates have a corim-id",
            hint="Give one manifest template and at least one CoMID template",
        )
    return build_corim(manifests[0][1], [one for one in loaded if one is not manifests[0]])
