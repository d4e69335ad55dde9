"""What issuers and members keep in files, under the names and in the formats of xaptum's tools.

An issuer's folder: `isk.bin`, `ipk.bin`, `gpk.bin`, and beside them `group.json`, what is asked of
members, and `issued.jsonl`, one line for each credential given. A member's folder: `pk.bin`,
`cred.bin`, `cred_sig.bin`, `gpk.bin`, `ipk.bin`; `sk.bin` with the key in software; `pub_key.txt`,
`handle.txt` with the key in a TPM; and `member.json`, which says where the key is. Each file is
written whole or not at all, and secrets only for their owner to read.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from excise.attest.daa.issuer import IssuerSecretKey
from excise.attest.daa.keys import MemberKey, SoftwareKey
from excise.attest.daa.tpm_setup import TpmKeyPlace, find_key
from excise.capture.store import write_durably
from excise.errors import FormatError, UsageError
from excise.evidence.daa import (
    Credential,
    CredentialSignature,
    IssuerPublicKey,
    KeyAssurance,
    KeyProtection,
)
from excise.evidence.daa.curve import G1, encode_g1
from excise.evidence.tpm_structures import parse_public
from excise.files import read_whole, unwritable

GROUP_FORMAT: Final = "excise-daa-group/1"
MEMBER_FORMAT: Final = "excise-daa-member/1"
SECRET: Final = 0o600
"""Permissions of a file that is for its owner alone."""
_LIMIT_BYTES: Final = 1 << 20


def read_file(path: Path) -> bytes:
    """Return a small file.

    Raises:
        FormatError: It cannot be read, or is far too large.
    """
    try:
        return read_whole(path, limit_bytes=_LIMIT_BYTES)
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from None


def make_folder(path: Path) -> None:
    """Make a folder unless it is there.

    Raises:
        OutputError: It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(error, source=path) from None


@contextmanager
def folder_lock(path: Path) -> Iterator[None]:
    """Keep a folder, made where it is not there, from being filled by two at once.

    Raises:
        UsageError: Another process fills it now, or it cannot be made or locked.
    """
    make_folder(path)
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"cannot be opened ({error.strerror})", source=str(path)) from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        raise UsageError(
            "another process writes keys there now",
            source=str(path),
            hint="Choose another folder, or wait until it is done",
        ) from None
    except OSError as error:
        os.close(held)
        raise UsageError(f"cannot be locked ({error.strerror})", source=str(path)) from None
    try:
        yield
    finally:
        os.close(held)


def read_json(path: Path, *, form: str) -> dict[str, Any]:
    """Return the object of a JSON file of a known form.

    Raises:
        FormatError: It cannot be read, or is of another form.
    """
    try:
        found = json.loads(read_file(path))
    except (ValueError, RecursionError):
        raise FormatError("not JSON", source=str(path)) from None
    if not isinstance(found, dict) or found.get("format") != form:
        raise FormatError(f"not of the form {form}", source=str(path), field="format")
    return found


def write_json(path: Path, form: str, fields: Mapping[str, Any]) -> None:
    """Write a JSON file of a form."""
    write_durably(path, (json.dumps({"format": form, **fields}, indent=1) + "\n").encode())


def read_group_rule(path: Path, *, group_key: bytes | None = None) -> KeyAssurance:
    """Return what a group's `group.json` says is asked of its members.

    Args:
        path: The file.
        group_key: `gpk.bin`, which the file must be about; None to leave that open.

    Raises:
        FormatError: It cannot be read, or is of another group.
    """
    found = read_json(path, form=GROUP_FORMAT)
    rule = found.get("rule")
    if not isinstance(rule, dict):
        raise FormatError("no rule of admission", source=str(path), field="rule")
    if group_key is not None and found.get("group_key") != group_key.hex():
        raise FormatError("it is of another group", source=str(path), field="group_key")
    try:
        return KeyAssurance.from_dict(rule)
    except FormatError as error:
        error.source = str(path)
        raise


def pcr_text(pcrs: Mapping[str, Mapping[int, bytes]]) -> bytes:
    """Return PCR values as `--pcrs` reads them: a line `bank:index value` for each."""
    lines = (
        f"{bank}:{index} {value.hex()}\n"
        for bank, held in pcrs.items()
        for index, value in held.items()
    )
    return "".join(lines).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerFolder:
    """An issuer's keys and its rule.

    Attributes:
        path: The folder.
        secret: x and y.
        public: The public key, with the proof that is in `ipk.bin`.
        rule: What is asked of every key.
    """

    path: Path
    secret: IssuerSecretKey
    public: IssuerPublicKey
    rule: KeyAssurance

    def record(
        self, member: G1, assurance: KeyAssurance, more: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line on a credential to `issued.jsonl`, on the disk before this returns.

        Args:
            member: Q of the member's key.
            assurance: What was proven of the key.
            more: What else to keep.

        Raises:
            OutputError: It cannot be written.
        """
        fields = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "member": encode_g1(member).hex(),
            **assurance.as_dict(),
            **(more or {}),
        }
        path = self.path / "issued.jsonl"
        try:
            with path.open("ab") as file:
                file.write(json.dumps(fields).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(error, source=path) from None


def init_issuer(path: Path, *, rule: KeyAssurance) -> IssuerFolder:
    """Make a new group: its keys, and what it asks of members.

    Raises:
        UsageError: The folder holds an issuer already, gets one by another process now, or cannot
            be written.
    """
    if rule.protection is KeyProtection.SOFTWARE and (rule.pcr_policy or rule.quoting):
        raise UsageError(
            "a key in software is bound to no PCRs, and quotes none", hint="Admit TPMs only"
        )
    with folder_lock(path):
        return _fill_issuer(path, rule)


def _fill_issuer(path: Path, rule: KeyAssurance) -> IssuerFolder:
    if (path / "isk.bin").exists():
        raise UsageError(
            "holds an issuer's key already, on which a whole group hangs",
            source=str(path),
            hint="Choose another folder",
        )
    secret = IssuerSecretKey.generate()
    public = secret.public_key()
    group_key = public.group.to_bytes()
    write_durably(path / "ipk.bin", public.to_bytes())
    write_durably(path / "gpk.bin", group_key)
    fields = {"group_key": group_key.hex(), "rule": rule.as_dict()}
    write_json(path / "group.json", GROUP_FORMAT, fields)
    # The secret key comes last: a folder that has it is complete.
    write_durably(path / "isk.bin", secret.to_bytes(), mode=SECRET)
    return IssuerFolder(path=path, secret=secret, public=public, rule=rule)


def open_issuer(path: Path) -> IssuerFolder:
    """Return the issuer in a folder; one that xaptum's tools made asks nothing of members' keys.

    Raises:
        FormatError: A file is missing or cannot be read, or they do not belong together.
    """
    secret = IssuerSecretKey.from_bytes(read_file(path / "isk.bin"), source=str(path / "isk.bin"))
    public = IssuerPublicKey.from_bytes(read_file(path / "ipk.bin"), source=str(path / "ipk.bin"))
    group_key = public.group.to_bytes()
    if secret.public_key().group != public.group:
        raise FormatError("is not the public key of isk.bin", source=str(path / "ipk.bin"))
    rule = KeyAssurance(protection=KeyProtection.SOFTWARE)
    if (path / "group.json").exists():
        rule = read_group_rule(path / "group.json", group_key=group_key)
    return IssuerFolder(path=path, secret=secret, public=public, rule=rule)


def write_software_key(path: Path, key: SoftwareKey) -> None:
    """Keep a member's key in software."""
    make_folder(path)
    write_durably(path / "sk.bin", key.to_bytes(), mode=SECRET)
    write_json(path / "member.json", MEMBER_FORMAT, {"key": "software"})


def write_tpm_key(path: Path, place: TpmKeyPlace) -> None:
    """Keep where a member's key in a TPM is; xaptum's tools read `pub_key.txt`, `handle.txt`."""
    make_folder(path)
    area = parse_public(place.public)
    write_durably(path / "pub_key.txt", f"04{area.x:064X}{area.y:064X}".encode())
    write_durably(path / "handle.txt", f"{place.handle:#010x}".encode())
    fields = {
        "key": "tpm",
        "tcti": place.tcti,
        "handle": place.handle,
        "public": place.public.hex(),
        "selection": {bank: list(held) for bank, held in place.selection.items()},
    }
    write_json(path / "member.json", MEMBER_FORMAT, fields)


def key_place(path: Path, *, tcti: str | None = None) -> TpmKeyPlace | None:
    """Return where a member's key in a TPM is, or None for one in software.

    Args:
        path: The member's folder.
        tcti: The TPM, where it is reached otherwise than when the key was made.

    Raises:
        FormatError: `member.json` cannot be read.
    """
    source = path / "member.json"
    if not source.exists() and (path / "sk.bin").exists():
        return None  # made by xaptum's tools, as is the next
    if not source.exists() and (path / "handle.txt").exists():
        return _foreign_place(path / "handle.txt", tcti)
    found = read_json(source, form=MEMBER_FORMAT)
    if found.get("key") == "software":
        return None
    try:
        selection = {str(bank): [int(n) for n in held] for bank, held in found["selection"].items()}
        return TpmKeyPlace(
            tcti=tcti or str(found["tcti"]),
            handle=int(found["handle"]),
            public=bytes.fromhex(found["public"]),
            selection=selection,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError("does not say where the key is", source=str(source)) from None


def _foreign_place(source: Path, tcti: str | None) -> TpmKeyPlace:
    try:
        handle = int(read_file(source).decode("ascii"), 16)
    except ValueError:
        raise FormatError("no handle in hexadecimal", source=str(source)) from None
    if tcti is None:
        raise UsageError("the folder does not say which TPM", hint="Name it: --tpm TCTI")
    return find_key(tcti, handle=handle)


@contextmanager
def member_key(path: Path, *, tcti: str | None = None) -> Iterator[MemberKey]:
    """Open the key of a member's folder for a block of work.

    Raises:
        FormatError: A file cannot be read.
        HostError: The TPM cannot be used.
    """
    place = key_place(path, tcti=tcti)
    if place is None:
        yield SoftwareKey.from_bytes(read_file(path / "sk.bin"), source=str(path / "sk.bin"))
        return
    from excise.attest.daa.tpm import open_key

    with open_key(place) as key:
        yield key


def write_membership(
    path: Path,
    credential: Credential,
    signature: CredentialSignature,
    *,
    issuer: IssuerPublicKey | None,
    group_key: bytes,
) -> None:
    """Keep a credential that was accepted; `cred.bin` comes last, so that it means complete."""
    write_durably(path / "gpk.bin", group_key)
    if issuer is not None:
        write_durably(path / "ipk.bin", issuer.to_bytes())
    write_durably(path / "cred_sig.bin", signature.to_bytes())
    write_durably(path / "cred.bin", credential.to_bytes())


def read_credential(path: Path) -> Credential:
    """Return the credential of a member's folder.

    Raises:
        FormatError: There is none, so that the member has not joined, or it cannot be read.
    """
    source = path / "cred.bin"
    if not source.exists():
        raise FormatError(
            "no credential", source=str(source), hint="Join a group: excise daa member join"
        )
    return Credential.from_bytes(read_file(source), source=str(source))
