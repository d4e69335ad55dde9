"""Evidence as an OP-TEE attester makes it, in its three layers, with the same steps measured.

`host` calls the trusted application (`ta`), which calls the pseudo trusted application (`pta`);
here they are functions of one process, so what lies between them is small. What is measured are
real files: `hash_ta` reads those of the application, `hash_tee` those of what stands for the
trusted operating system, both anew for every token.

Source: iisec-suzaki/optee-ra, docs/performance-measurement.md, for the steps and their names.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import excise
from excise.attest.attester.keys import Signer, labels_of
from excise.errors import FormatError, UsageError
from excise.evidence.cbor import write_cbor
from excise.evidence.cose import assemble_sign1, prepare_sign1
from excise.evidence.psa import (
    PROFILE_1,
    Profile,
    PsaClaims,
    SoftwareComponent,
    encode_claims,
)
from excise.perf import Recorder

TA_UUID: Final = uuid.UUID("a6b53b34-855f-11ee-b9d1-0242ac120002")
IMPLEMENTATION_ID: Final = b"excise-attester-0000000000000001"
CLIENT_ID: Final = int.from_bytes(hashlib.sha256(TA_UUID.bytes).digest()[-4:], "big") & 0x7FFFFFFF
_ES256: Final = -7


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One software component and the files it consists of.

    Attributes:
        kind: Measurement type, such as `ARoT`.
        files: Files, hashed in the order of size and then content, as memory regions are there.
        version: Empty when none is stated.
    """

    kind: str
    files: tuple[Path, ...]
    version: str = ""

    def digest(self) -> bytes:
        """Return the SHA-256 over the files, read now.

        Raises:
            FormatError: A file cannot be read, or is none: a device has no end.
        """
        made = []
        for path in self.files:
            try:
                if not path.is_file():
                    path.stat()
                    raise FormatError("cannot be measured: it is no file", source=str(path))
                with path.open("rb") as file:
                    inner = hashlib.file_digest(file, "sha256").digest()
                    size = file.tell()
            except OSError as error:
                raise FormatError(
                    f"cannot be measured ({error.strerror})", source=str(path)
                ) from None
            made.append((size, inner))
        if len(made) == 1:
            return made[0][1]
        return hashlib.sha256(b"".join(digest for _, digest in sorted(made))).digest()


def application_of(files: Sequence[Path] = (), *, version: str = "") -> Measured:
    """Return the application as a component: the files given, else this program's own.

    Args:
        files: What it consists of.
        version: Which version to state; this program's own where it is that, else none.
    """
    if files:
        return Measured(kind="ARoT", files=tuple(files), version=version)
    own = sorted(Path(excise.__file__).parent.rglob("*.py"))
    return Measured(kind="ARoT", files=tuple(own), version=version or excise.__version__)


def system_of(files: Sequence[Path] = (), *, version: str = "") -> Measured:
    """Return the system as a component: the files given, else the Python that runs this.

    Args:
        files: What it consists of.
        version: Which version to state; Python's where it is that, else none.
    """
    if files:
        return Measured(kind="PRoT", files=tuple(files), version=version)
    python = Path(sys.executable).resolve()
    return Measured(kind="PRoT", files=(python,), version=version or platform.python_version())


def host_boot_seed() -> bytes:
    """Return 32 bytes that are the same until the next boot, as the claim wants them."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return hashlib.sha256(path.read_bytes() if path.exists() else b"no boot id").digest()


class Attester:
    """Makes tokens.

    Args:
        signer: The key.
        application: The component that `hash_ta` measures.
        system: The component that `hash_tee` measures.
        profile: Profile of the tokens.
        implementation_id: 32 bytes.
        signer_id: Who signed the components: 32 bytes.
        lifecycle: The lifecycle claim.
        boot_seed: 8 to 32 bytes; needed by profile 1.
        perf: Where steps of the host and the application are measured.
        pta_perf: Where those of the pseudo application are.
    """

    def __init__(
        self,
        signer: Signer,
        *,
        application: Measured,
        system: Measured,
        profile: Profile,
        perf: Recorder,
        pta_perf: Recorder,
        implementation_id: bytes = IMPLEMENTATION_ID,
        signer_id: bytes = bytes(32),
        lifecycle: int = 0x3000,
        boot_seed: bytes = b"",
    ) -> None:
        if len(implementation_id) != 32:
            raise UsageError(f"an implementation ID has 32 bytes, not {len(implementation_id)}")
        if profile is PROFILE_1 and len(boot_seed) != 32:
            raise UsageError("profile 1 wants a boot seed of 32 bytes")
        self._signer = signer
        self._application, self._system = application, system
        self._profile = profile
        self._implementation_id = implementation_id
        self._signer_id = signer_id
        self._lifecycle = lifecycle
        self._boot_seed = boot_seed
        self.perf, self._pta_perf = perf, pta_perf
        self.labels = labels_of(signer.kind)
        write_cbor({})  # loads what encodes, so that no step has to

    def reference_templates(self, build: str) -> dict[str, dict[str, Any]]:
        """Return what a verifier has to know, as CoRIM templates by file name: `psa_templates`.

        Raises:
            FormatError: A file cannot be measured.
        """
        from excise.evidence.corim import component_template, psa_templates

        public = self._signer.public
        return psa_templates(
            build=build,
            implementation_id=self._implementation_id,
            components=[
                component_template(
                    one.kind, one.digest(), version=one.version, signer_id=self._signer_id
                )
                for one in (self._application, self._system)
            ],
            anchors=[(public.instance_id(), public)],
            vendor="excise",
            model=build,
        )

    def token(self, nonce: bytes) -> bytes:
        """Return a token that answers a challenge: the trusted application's command."""
        with (
            self.perf.measure("ta", "cmd_total", **self.labels),
            self.perf.measure("ta", "pta_invoke", **self.labels),
        ):
            return self._invoke(nonce)

    def _invoke(self, nonce: bytes) -> bytes:
        """Return the token: the pseudo application's command, which prints its own steps."""
        measure, labels = self._pta_perf.measure, self.labels
        with measure("pta", "cmd_total", **labels):
            with measure("pta", "instance_id", **labels):
                instance_id = self._signer.public.instance_id()
            with measure("pta", "hash_ta", **labels):
                application = self._application.digest()
            with measure("pta", "hash_tee", **labels):
                system = self._system.digest()
            with measure("pta", "cbor_encode", **labels):
                payload = self._payload(nonce, instance_id, application, system)
            with measure("pta", "cose_sign1", **labels):
                protected, signature = self._sign(payload)
            token = assemble_sign1(protected, payload, signature)
        self._pta_perf.flush(layer="pta")
        return token

    def _payload(self, nonce: bytes, instance: bytes, application: bytes, system: bytes) -> bytes:
        pairs = ((self._application, application), (self._system, system))
        claims = PsaClaims(
            profile=self._profile,
            nonce=nonce,
            client_id=CLIENT_ID,
            instance_id=instance,
            implementation_id=self._implementation_id,
            lifecycle=self._lifecycle,
            boot_seed=self._boot_seed,
            certification_reference="",
            vsi="",
            components=tuple(
                SoftwareComponent(
                    measurement_type=component.kind,
                    measurement_value=digest,
                    version=component.version,
                    signer_id=self._signer_id,
                    description="sha-256",
                )
                for component, digest in pairs
            ),
            ignored=(),
        )
        return encode_claims(claims)

    def _sign(self, payload: bytes) -> tuple[bytes, bytes]:
        """Return protected header and signature, in the three steps that `cose_sign1` is."""
        measure, labels = self._pta_perf.measure, self.labels
        with measure("pta", "sign_key_setup", **labels):
            self._signer.set_up()
        with measure("pta", "sign_tbs_hash", **labels):
            protected, tbs = prepare_sign1(payload, algorithm=_ES256)
            digest = hashlib.sha256(tbs).digest()
        with measure("pta", "sign_ecdsa", **labels):
            signature = self._signer.sign(digest)
        return protected, signature
