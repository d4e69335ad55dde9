"""`excise verify token` and `excise verify ear`: is this attestation to be believed?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import JsonOption, parsed, read_input, refuse_idle
from excise.cli.verify import ReportOption, conclude
from excise.errors import UsageError
from excise.units import parse_seconds

if TYPE_CHECKING:
    from excise.evidence.checks import AppraisalResult
    from excise.evidence.corim import ReferenceStore
    from excise.evidence.cose_key import VerificationKey
    from excise.evidence.psa import Profile, TokenOptions

KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="FILE", help="Public key: PEM, DER, JWK or COSE_Key.", show_default=False
    ),
]
NonceOption = Annotated[
    str | None,
    typer.Option(
        "--nonce", metavar="HEX", help="The challenge, in hex or base64.", show_default=False
    ),
]
CorimOption = Annotated[
    list[str] | None,
    typer.Option(
        "--corim",
        metavar="PATH",
        help="Trust anchors and reference values: a CoRIM, or a folder of CoRIMs or templates.",
        show_default=False,
    ),
]
CorimKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--corim-key",
        metavar="FILE",
        help="Key that must have signed the CoRIMs. [default: unsigned ones are taken]",
        show_default=False,
    ),
]
BuildOption = Annotated[
    str | None,
    typer.Option(
        "--build", metavar="NAME", help="Use this build alone. [default: all]", show_default=False
    ),
]
PolicyOption = Annotated[str, typer.Option("--policy", help="strict or veraison.")]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="SWITCH",
        help="Do not refuse for: signer, algorithm, missing, extra, duplicates, unmeasured.",
        show_default=False,
    ),
]


def token(
    context: typer.Context,
    evidence: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", help="A PSA or CCA token, also in hex; - for standard input."
        ),
    ],
    key: KeyOption = None,
    corim: CorimOption = None,
    corim_key: CorimKeyOption = None,
    build: BuildOption = None,
    nonce: NonceOption = None,
    any_nonce: Annotated[
        bool, typer.Option("--any-nonce", help="Accept a token that may be a replay.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="PSA profile to insist on: 1, 2 or tfm.", show_default=False
        ),
    ] = None,
    mac_key: Annotated[
        str | None,
        typer.Option(
            "--mac-key",
            metavar="FILE",
            help="Accept a COSE_Mac0 token under this shared secret (raw bytes or JWK).",
            show_default=False,
        ),
    ] = None,
    bound_instance: Annotated[
        bool,
        typer.Option("--bound-instance", help="Insist that the instance ID is a hash of the key."),
    ] = False,
    policy: PolicyOption = "strict",
    allow: AllowOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a PSA or CCA attestation token, and appraise it where reference values are given.

    Exit 0 only when no check failed and, with --corim, every claim made is affirming.

    Example: excise verify token token.cbor --key iak.pem --nonce 0101...01
    """
    from excise.evidence.appraisal import appraise_cca, appraise_psa, policy_of
    from excise.evidence.cca import is_collection, verify_cca_token
    from excise.evidence.psa import verify_token

    _refuse_both(nonce, any_nonce=any_nonce)
    if not corim:
        refuse_idle(
            context,
            ("corim_key", "policy", "allow"),
            "of reference values, and none were given",
            hint="Give --corim",
        )
    data = _evidence(read_input(evidence))
    wanted = policy_of(policy, allow or ())
    trust, store = _trust(key, mac_key, corim, corim_key, build)
    challenge = _nonce(nonce, any_nonce=any_nonce)
    results: list[AppraisalResult] = []
    if is_collection(data):
        _refuse_psa_options(profile, mac_key, any_nonce=any_nonce)
        refuse_idle(context, ["bound_instance"], "of PSA tokens, and this is CCA's")
        found = verify_cca_token(data, trust, nonce=challenge)
        results += found.results()
        if store is not None:
            results += [one.as_result() for one in appraise_cca(found, store, policy=wanted)]
    else:
        options = _options(profile, mac_key, any_nonce=any_nonce, bound=bound_instance)
        verified = verify_token(data, trust, nonce=challenge, options=options)
        results.append(verified)
        if store is not None:
            results.append(appraise_psa(verified, store, policy=wanted).as_result())
    conclude(results, report=report, as_json=as_json)


def ear(
    result: Annotated[
        str,
        typer.Argument(metavar="EAR", help="An attestation result (JWT); - for standard input."),
    ],
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="FILE",
            help="The verifier's public key, on P-256, or its keys: a JWK set, or its answer at "
            "/.well-known/veraison/verification.",
        ),
    ],
    nonce: NonceOption = None,
    any_nonce: Annotated[
        bool,
        typer.Option("--any-nonce", help="Accept a result whose challenge is not known here."),
    ] = False,
    submodule: Annotated[
        list[str] | None,
        typer.Option(
            "--submod",
            metavar="NAME",
            help="A submodule that must be there, such as PSA_IOT.",
            show_default=False,
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="STATUS",
            help="A status to rely on. [default: affirming]",
            show_default=False,
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        typer.Option(
            "--max-age",
            metavar="TIME",
            parser=parsed(parse_seconds, "duration"),
            help="Oldest result to rely on, such as 5min.",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check an attestation result as who relies on it: signature, form, status, challenge, age.

    One of --nonce, --max-age and --any-nonce says how old results are told from new ones.

    Example: excise verify ear result.jwt --key verifier.jwk --nonce 0101...01 --submod PSA_IOT
    """
    from excise.evidence.cose_key import read_key_set
    from excise.evidence.ear import EarOptions, key_named, verify_ear
    from excise.evidence.trust_vector import Status

    _refuse_both(nonce, any_nonce=any_nonce)
    names = accept or [Status.AFFIRMING]
    unknown = [name for name in names if name not in set(Status)]
    if unknown:
        raise UsageError(f"--accept {unknown[0]!r} is unknown", hint=f"Known: {', '.join(Status)}")
    options = EarOptions(
        accept=tuple(Status(name) for name in names),
        submodules=tuple(submodule or ()),
        max_age_s=max_age,
    )
    text = read_input(result).decode("utf-8", "replace").strip()
    challenge = _nonce(nonce, any_nonce=any_nonce or max_age is not None, what="result")
    trusted = read_key_set(read_input(key), source=key)
    found = verify_ear(text, key_named(text, trusted), nonce=challenge, options=options)
    conclude([found], report=report, as_json=as_json)


def _evidence(data: bytes) -> bytes:
    """Return a token, also one in hexadecimal, as it comes out of a console.

    Nothing is taken for another thing than it is: no token begins with a digit's byte.
    """
    text = data.strip()
    if len(text) > 1 and not text.translate(None, b"0123456789abcdefABCDEF \t\r\n"):
        try:
            return bytes.fromhex(text.decode("ascii"))
        except ValueError:
            return data
    return data


def read_nonce(text: str) -> bytes:
    """Return a challenge given in hexadecimal or, where it is none, base64.

    Raises:
        UsageError: It is neither, empty, or hexadecimal of an odd number of digits.
    """
    from excise.errors import FormatError
    from excise.evidence.base64text import decode_base64

    digits = text.strip().removeprefix("0x")
    if not digits:
        raise UsageError("--nonce is empty", hint="Was a variable of the shell not set?")
    if len(digits) % 2 and len(digits) > 8 and set(digits) <= set("0123456789abcdefABCDEF"):
        raise UsageError(
            f"--nonce has {len(digits)} hexadecimal digits, and two make a byte",
            hint="Is it cut off?",
        )
    try:
        return bytes.fromhex(digits)
    except ValueError:
        pass
    try:
        return decode_base64(text.strip(), field="--nonce")
    except FormatError:
        raise UsageError(f"--nonce {text!r} is neither hexadecimal nor base64") from None


def _refuse_both(nonce: str | None, *, any_nonce: bool) -> None:
    if nonce is not None and any_nonce:
        raise UsageError("--nonce and --any-nonce are both given", hint="Leave one out")


def _nonce(text: str | None, *, any_nonce: bool, what: str = "token") -> bytes | None:
    if text is not None:
        return read_nonce(text)
    if not any_nonce:
        raise UsageError(
            f"no challenge was given, so that any old {what} would do",
            hint=f"Give --nonce, or --any-nonce to accept a {what} that may be a replay",
        )
    return None


def load_references(paths: list[str], keys: list[str] | None, build: str | None) -> ReferenceStore:
    """Return the reference values a command line names."""
    from excise.evidence.corim import CorimOptions, load_store
    from excise.evidence.cose_key import read_key

    trusted = tuple(read_key(read_input(name), source=name) for name in keys or ())
    options = CorimOptions(keys=trusted) if trusted else None
    store = load_store([Path(path) for path in paths], options=options)
    return store.only(build) if build is not None else store


def _trust(
    key: str | None,
    mac_key: str | None,
    corim: list[str] | None,
    corim_key: list[str] | None,
    build: str | None,
) -> tuple[VerificationKey | ReferenceStore, ReferenceStore | None]:
    """Return what to find the key in, and the reference values if any were given."""
    from excise.evidence.cose_key import read_key, secret_key

    if build is not None and not corim:
        raise UsageError("--build chooses among reference values", hint="Give --corim too")
    store = load_references(corim, corim_key, build) if corim else None
    if key is not None and mac_key is not None:
        raise UsageError("--key and --mac-key are both given")
    if mac_key is not None:
        data = read_input(mac_key)
        return read_key(data) if data.lstrip()[:1] == b"{" else secret_key(data), store
    if key is not None:
        return read_key(read_input(key), source=key), store
    if store is None:
        raise UsageError("nothing says which key to trust", hint="Give --key FILE or --corim PATH")
    return store, store


def _options(
    profile: str | None, mac_key: str | None, *, any_nonce: bool, bound: bool
) -> TokenOptions:
    from excise.evidence.psa import TokenOptions

    return TokenOptions(
        profile=profile_of(profile) if profile is not None else None,
        allow_mac0=mac_key is not None,
        require_nonce=not any_nonce,
        require_bound_instance=bound,
    )


def profile_of(label: str) -> Profile:
    """Return a PSA profile by its label or name.

    Raises:
        UsageError: There is none; the hint lists them.
    """
    from excise.evidence.psa import PROFILES

    for known in PROFILES:
        if label in (known.label, known.name):
            return known
    raise UsageError(
        f"--profile {label!r} is unknown",
        hint=f"Known: {', '.join(f'{one.label} ({one.name})' for one in PROFILES)}",
    )


def _refuse_psa_options(profile: str | None, mac_key: str | None, *, any_nonce: bool) -> None:
    if profile is not None or mac_key is not None or any_nonce:
        raise UsageError("--profile, --mac-key and --any-nonce are of PSA tokens; this is CCA's")
