"""A member's key in a TPM, over any TCTI: used, and proven to be there.

TPM2_Commit draws the random number of a proof and TPM2_Sign uses it up; a number is never used
twice, since a proof that fails begins anew with another TPM2_Commit. With a PCR policy and
`userWithAuth` clear, the TPM signs only while the PCRs have the values they had when the key was
made.

Source: TCG, TPM Library Part 3, TPM2_Commit, TPM2_Sign, TPM2_ActivateCredential; TCG EK Credential
Profile for the endorsement key's template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from excise.attest.daa.keys import Proof, randomise, signature_of
from excise.attest.daa.tpm_setup import Selection, TpmKeyPlace, selection_text
from excise.collect.tpm import (
    QUOTE_ATTEMPTS,
    open_tpm,
    patiently,
    read_consistently,
    tpm_selection,
)
from excise.collect.tpm.codes import base_code
from excise.errors import FormatError, HostError, UsageError
from excise.evidence.daa import Credential, QuotedState, Signature
from excise.evidence.daa.curve import (
    G1,
    decode_g1,
    decode_scalar,
    encode_scalar,
    sum_of_multiples,
)
from excise.evidence.daa.field import N, integer
from excise.evidence.daa.hashing import basename_point, challenge_with_nonce, hash_to_scalar
from excise.evidence.daa.schnorr import Dialect, proof_preimage, quote_data, quote_digest
from excise.evidence.tpm_structures import TpmPublic, parse_public

if TYPE_CHECKING:
    from tpm2_pytss import ESAPI, ESYS_TR

EkType = Literal["ecc", "rsa", "ecc384"]
"""P-256 or RSA-2048 of the low range of the EK profile, or P-384 of the high one."""

SIGN_ATTEMPTS: Final = 16
"""How often a proof is begun: one in 256 has a nonce with a leading zero byte, which the TPM drops
and xaptum's format cannot hold."""

_EK_TEMPLATES: Final = {
    "ecc": "EK-ECC256",
    "rsa": "EK-RSA2048",
    "ecc384": "EK-HIGH-ECC384",
}
_HASH_BYTES: Final = 1024
"""TPM2B_MAX_BUFFER of every TPM; some take more."""
_RC_VALUE: Final = 0x084
_RC_POLICY_FAIL: Final = 0x09D
_RC_PCR_CHANGED: Final = 0x128


@dataclass(frozen=True, slots=True, kw_only=True)
class EndorsementKey:
    """The TPM's endorsement key, by which an issuer can address the TPM.

    Attributes:
        public: TPM2B_PUBLIC.
        certificate: DER, as the TPM's maker left it there; None where it did not.
    """

    public: bytes
    certificate: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EcdaaAnswer:
    """What a TPM answers where it signs.

    Attributes:
        digest: What it signed, as a number.
        nonce: As it gave it: without leading zero bytes.
        s: Response of the proof.
        attest: TPMS_ATTEST where it quoted.
    """

    digest: int
    nonce: bytes
    s: int
    attest: bytes = b""


def ecdaa_answer(digest: int, signature: Any, *, attest: bytes = b"") -> EcdaaAnswer:
    """Return what a TPMT_SIGNATURE says.

    Raises:
        FormatError: If its number is not below the group order.
    """
    ecdaa = signature.signature.ecdaa
    response = bytes(ecdaa.signatureS).rjust(32, b"\0")
    s = decode_scalar(response, field="TPMS_SIGNATURE_ECDAA.signatureS", allow_zero=True)
    return EcdaaAnswer(digest=digest, nonce=bytes(ecdaa.signatureR), s=s, attest=attest)


def ecdaa_scheme(counter: int) -> Any:
    """Return the TPMT_SIG_SCHEME that uses up the random number of a TPM2_Commit."""
    from tpm2_pytss import TPM2_ALG, TPMS_SCHEME_ECDAA, TPMT_SIG_SCHEME, TPMU_SIG_SCHEME

    details = TPMS_SCHEME_ECDAA(hashAlg=TPM2_ALG.SHA256, count=counter)
    return TPMT_SIG_SCHEME(scheme=TPM2_ALG.ECDAA, details=TPMU_SIG_SCHEME(ecdaa=details))


class TpmKey:
    """A member's key in an open TPM; see `open_key`."""

    def __init__(self, tpm: ESAPI, handle: ESYS_TR, place: TpmKeyPlace) -> None:
        self._tpm = tpm
        self._handle = handle
        self._place = place
        self._area = parse_public(place.public)
        self._public = _point(self._area.x, self._area.y, "TPMT_PUBLIC.unique")

    @property
    def public(self) -> G1:
        """Q = sk·P₁."""
        return self._public

    @property
    def tpm(self) -> ESAPI:
        """The TPM it is in, open: many a TPM takes one connection at a time."""
        return self._tpm

    @property
    def quoting(self) -> bool:
        """Whether its quotes prove something: it is restricted."""
        return "restricted" in self._area.attributes

    @property
    def area(self) -> TpmPublic:
        """The key's public area."""
        return self._area

    def prove(
        self, *, base: G1, public: G1, message: bytes, basename: bytes | None = None
    ) -> Proof:
        """Return a proof that public = sk·base; see `MemberKey.prove`.

        The proof's equation is checked before it is returned, by which the TPM's dialect shows.

        Raises:
            HostError: The TPM refuses, its PCRs have other values than the key's policy, or its
                signatures follow no rule that a verifier can check.
        """
        return self._prove(base, public, message, basename, self._sign)[0]

    def quote(
        self,
        credential: Credential,
        *,
        selection: Selection,
        message: bytes,
        basename: bytes | None = None,
    ) -> tuple[Signature, QuotedState]:
        """Return a quote over PCRs, signed as a member of the group and bound to a message.

        It tells which TPM it is from, though not whose: the structure holds a version of the
        firmware and counters that are the same in all quotes of a TPM between resets.

        Args:
            credential: For this key, which must be restricted (`create_key`, `quoting`).
            selection: PCR indices by bank.
            message: The bytes it is bound to: with `framed_message`, to a verifier's nonce.
            basename: What the pseudonym is made of; None for none.

        Raises:
            UsageError: The key is not restricted, so that its quotes prove nothing.
            HostError: The TPM refuses, or a PCR moved during every quote.
        """
        if not self.quoting:
            raise UsageError("the key is not restricted, so that its quotes prove nothing")
        wanted = {bank: tuple(sorted(set(indices))) for bank, indices in selection.items()}
        points = randomise(credential)

        def finish(preimage: bytes, counter: int) -> EcdaaAnswer:
            return self._quote(wanted, preimage, counter)

        for _ in range(QUOTE_ATTEMPTS):
            before = read_consistently(self._tpm, wanted)
            proof, attest = self._prove(points[1], points[3], message, basename, finish)
            after = read_consistently(self._tpm, wanted)
            for values in (before, after):
                state = QuotedState(attest=attest, pcrs=values)
                if state.matches():
                    return signature_of(points, proof), state
        raise HostError(
            f"a PCR moved during each of {QUOTE_ATTEMPTS} quotes",
            source=self._place.tcti,
            hint="Wait until the system is quiet, or leave PCR 10 out",
        )

    def _prove(
        self,
        base: G1,
        public: G1,
        message: bytes,
        basename: bytes | None,
        finish: Callable[[bytes, int], EcdaaAnswer],
    ) -> tuple[Proof, bytes]:
        """Return a proof, and what was quoted along.

        Args:
            base: P₁.
            public: sk·P₁.
            message: What is signed.
            basename: What the pseudonym is made of.
            finish: Has the TPM sign what a proof is over, with the counter of its commitment.
        """
        from tpm2_pytss import TSS2_Exception

        point = basename_point(basename) if basename is not None else None
        for attempt in range(1, SIGN_ATTEMPTS + 1):
            k, l_point, commitment, counter = self._commit(base, point)
            named = None
            if basename is not None and point is not None and k is not None and l_point is not None:
                named = (basename, l_point, point.point, k)
            preimage = proof_preimage(
                commitment=commitment, base=base, public=public, message=message, basename=named
            )
            try:
                answer = finish(preimage, counter)
            except TSS2_Exception as error:
                # The counter is gone, as after a TPM reset: another one, never this one again.
                if base_code(int(error.rc)) == _RC_VALUE and attempt < SIGN_ATTEMPTS:
                    continue
                raise
            nonce, s = answer.nonce, answer.s
            if len(nonce) != 32 or nonce[0] == 0 or answer.digest >= N:
                continue
            dialect, c = self._dialect(base, public, commitment, answer.digest, nonce, s)
            stored = nonce if dialect is Dialect.HASHED_NONCE else encode_scalar(c)
            proof = Proof(c=c, s=s, nonce=stored, pseudonym=k, dialect=dialect, attempts=attempt)
            return proof, answer.attest
        raise HostError(
            f"the TPM gave no usable nonce in {SIGN_ATTEMPTS} signatures", source=self._place.tcti
        )

    def activate(self, blob: bytes, secret: bytes, *, ek: EkType = "ecc") -> bytes:
        """Return what an issuer encrypted to this TPM's EK and this key's name.

        Args:
            blob: TPM2B_ID_OBJECT.
            secret: TPM2B_ENCRYPTED_SECRET.
            ek: Type of the EK it was encrypted to.

        Raises:
            HostError: It was meant for another TPM or another key.
        """
        from tpm2_pytss import (
            ESYS_TR,
            TPM2B_ENCRYPTED_SECRET,
            TPM2B_ID_OBJECT,
            TSS2_Exception,
        )

        credential, _ = TPM2B_ID_OBJECT.unmarshal(blob)
        encrypted, _ = TPM2B_ENCRYPTED_SECRET.unmarshal(secret)
        with (
            _endorsement_key(self._tpm, ek) as (handle, endorsement),
            self._endorsement_session(endorsement) as session,
        ):
            try:
                return bytes(
                    patiently(
                        lambda: self._tpm.activate_credential(
                            self._handle,
                            handle,
                            credential,
                            encrypted,
                            session1=ESYS_TR.PASSWORD,
                            session2=session,
                        )
                    )
                )
            except TSS2_Exception as error:
                raise HostError(
                    f"the TPM does not open the issuer's challenge: {error}",
                    source=self._place.tcti,
                    hint="It was made for another key or another TPM",
                ) from None

    def endorsement_key(self, *, ek: EkType = "ecc") -> EndorsementKey:
        """Return the EK of the TPM, and its certificate where the TPM holds one."""
        with _endorsement_key(self._tpm, ek) as (_, found):
            return found

    def _commit(self, base: G1, point: Any) -> tuple[G1 | None, G1 | None, G1, int]:
        """Return K, L, E and the counter of TPM2_Commit."""
        from tpm2_pytss import TPM2B_ECC_POINT, TPMS_ECC_POINT

        first = TPM2B_ECC_POINT(
            point=TPMS_ECC_POINT(
                x=int(base[0]).to_bytes(32, "big"), y=int(base[1]).to_bytes(32, "big")
            )
        )
        s2 = point.preimage if point is not None else b""
        y2 = int(point.point[1]).to_bytes(32, "big") if point is not None else b""
        with self._authorised() as session:
            k, l_point, e, counter = patiently(
                lambda: self._tpm.commit(self._handle, first, s2, y2, session1=session)
            )
        named = point is not None
        return (
            _tpm_point(k, "K") if named else None,
            _tpm_point(l_point, "L") if named else None,
            _tpm_point(e, "E"),
            int(counter),
        )

    def _sign(self, preimage: bytes, counter: int) -> EcdaaAnswer:
        """Have the TPM sign the hash of what a proof is over."""
        digest, ticket = self._hash(preimage)
        with self._authorised() as session:
            signature = patiently(
                lambda: self._tpm.sign(
                    self._handle, digest, ecdaa_scheme(counter), ticket, session1=session
                )
            )
        return ecdaa_answer(int.from_bytes(bytes(digest), "big"), signature)

    def _hash(self, preimage: bytes) -> tuple[Any, Any]:
        """Return the digest to sign, and the ticket that it is no structure of the TPM's."""
        from tpm2_pytss import (
            ESYS_TR,
            TPM2_ALG,
            TPM2_RH,
            TPM2_ST,
            TPM2B_DIGEST,
            TPMT_TK_HASHCHECK,
        )

        if self.quoting:
            if len(preimage) > _HASH_BYTES:
                raise UsageError(
                    f"{len(preimage)} bytes; a restricted key signs at most {_HASH_BYTES}",
                    hint="Sign the hash of the message: framed_message makes such a form",
                )
            digest, ticket = patiently(
                lambda: self._tpm.hash(preimage, TPM2_ALG.SHA256, ESYS_TR.OWNER)
            )
            return digest, ticket
        ticket = TPMT_TK_HASHCHECK(tag=TPM2_ST.HASHCHECK, hierarchy=TPM2_RH.NULL)
        return TPM2B_DIGEST(encode_scalar(hash_to_scalar(preimage))), ticket

    def _quote(
        self, selection: Mapping[str, tuple[int, ...]], preimage: bytes, counter: int
    ) -> EcdaaAnswer:
        """Have the TPM quote PCRs, bound to what a proof is over."""
        from tpm2_pytss import TPM2B_DATA

        data, pcrs = TPM2B_DATA(quote_data(preimage)), tpm_selection(selection)
        with self._authorised() as session:
            quoted, signature = patiently(
                lambda: self._tpm.quote(
                    self._handle, pcrs, data, ecdaa_scheme(counter), session1=session
                )
            )
        attest = bytes(quoted.attestationData)
        return ecdaa_answer(quote_digest(preimage, attest), signature, attest=attest)

    def _dialect(
        self, base: G1, public: G1, commitment: G1, digest: int, nonce: bytes, s: int
    ) -> tuple[Dialect, int]:
        found = tpm_challenge(
            base=base, public=public, commitment=commitment, digest=digest, nonce=nonce, s=s
        )
        if found is None or found[0] is Dialect.OWN_CHALLENGE:
            rule = "a challenge of its own, bound to no message" if found else "an unknown rule"
            raise HostError(
                f"this TPM signs by {rule}: no verifier can check that",
                source=self._place.tcti,
                hint="Nuvoton 7.2 is known for it; another firmware or another TPM may do",
            )
        return found

    @contextmanager
    def _authorised(self) -> Iterator[Any]:
        """Give the session that authorises one use of the key."""
        from tpm2_pytss import ESYS_TR, TSS2_Exception

        if not self._place.selection:
            yield ESYS_TR.PASSWORD
            return
        try:
            with self._policy_session() as session:
                selection = tpm_selection(self._place.selection)
                patiently(lambda: self._tpm.policy_pcr(session, b"", selection))
                yield session
        except TSS2_Exception as error:
            if base_code(int(error.rc)) not in (_RC_POLICY_FAIL, _RC_PCR_CHANGED):
                raise
            chosen = selection_text(self._place.selection)
            raise HostError(
                f"the key is bound to the PCRs {chosen}, which have other values now",
                source=self._place.tcti,
                hint="The machine is in another state than when the key was made; boot it as it "
                "was, or join with a new key",
            ) from None

    @contextmanager
    def _endorsement_session(self, key: EndorsementKey) -> Iterator[Any]:
        """Give the session that authorises one use of the EK."""
        from tpm2_pytss import ESYS_TR

        if "userWithAuth" in parse_public(key.public).attributes:  # of the high range
            yield ESYS_TR.PASSWORD
            return
        with self._policy_session() as session:
            patiently(lambda: self._tpm.policy_secret(ESYS_TR.ENDORSEMENT, session))
            yield session

    @contextmanager
    def _policy_session(self) -> Iterator[Any]:
        from tpm2_pytss import ESYS_TR, TPM2_ALG, TPM2_SE, TPMT_SYM_DEF, TSS2_Exception

        session = patiently(
            lambda: self._tpm.start_auth_session(
                ESYS_TR.NONE,
                ESYS_TR.NONE,
                TPM2_SE.POLICY,
                TPMT_SYM_DEF(algorithm=TPM2_ALG.NULL),
                TPM2_ALG.SHA256,
            )
        )
        try:
            yield session
        finally:
            # A command that used the session has ended it; one that failed has not.
            with suppress(TSS2_Exception):
                self._tpm.flush_context(session)


@contextmanager
def open_key(place: TpmKeyPlace, *, endorsement_auth: bytes = b"") -> Iterator[TpmKey]:
    """Open a TPM and a member's key in it for a block of work.

    Args:
        place: Where the key is.
        endorsement_auth: Password of the endorsement hierarchy, which a join needs.

    Raises:
        HostError: No TPM, or another key or none at the handle.
        FormatError: The public area is not one of a member's key.
    """
    with open_tpm(place.tcti) as tpm:
        from tpm2_pytss import ESYS_TR, TSS2_Exception

        tpm.tr_set_auth(ESYS_TR.ENDORSEMENT, endorsement_auth)

        try:
            handle = patiently(lambda: tpm.tr_from_tpmpublic(place.handle))
        except TSS2_Exception as error:
            raise HostError(
                f"no key at the persistent handle {place.handle:#010x}: {error}",
                source=place.tcti,
                hint="The TPM may have been cleared; then the member must join again",
            ) from None
        public, *_ = patiently(lambda: tpm.read_public(handle))
        if bytes(public.marshal()) != place.public:
            raise HostError(
                f"another key is at the persistent handle {place.handle:#010x}",
                source=place.tcti,
                hint="The member must join again with it",
            )
        yield TpmKey(tpm, handle, place)


@contextmanager
def _endorsement_key(tpm: ESAPI, kind: EkType) -> Iterator[tuple[Any, EndorsementKey]]:
    from tpm2_pytss import ESYS_TR, TPM2B_SENSITIVE_CREATE
    from tpm2_pytss.utils import NVReadEK, create_ek_template

    if kind not in _EK_TEMPLATES:
        raise UsageError(f"unknown type of EK {kind!r}", hint=f"Known: {', '.join(_EK_TEMPLATES)}")
    try:
        certificate, template = create_ek_template(_EK_TEMPLATES[kind], NVReadEK(tpm))
    except ValueError as error:
        raise HostError(f"the TPM has no EK of the type {kind}: {error}") from None
    handle, public, *_ = patiently(
        lambda: tpm.create_primary(TPM2B_SENSITIVE_CREATE(), template, ESYS_TR.ENDORSEMENT)
    )
    try:
        yield handle, EndorsementKey(public=bytes(public.marshal()), certificate=certificate)
    finally:
        tpm.flush_context(handle)


def tpm_challenge(
    *, base: G1, public: G1, commitment: G1, digest: int, nonce: bytes, s: int
) -> tuple[Dialect, int] | None:
    """Return by which rule a TPM made the challenge of a signature, and the challenge.

    Args:
        base: P₁ of TPM2_Commit.
        public: sk·P₁.
        commitment: E of TPM2_Commit.
        digest: What TPM2_Sign was given.
        nonce: `signatureR`, as the TPM gave it.
        s: `signatureS`.
    """
    own = integer(int.from_bytes(nonce, "big") % int(N))
    echoed = Dialect.ECHOED_DIGEST if own == digest else Dialect.OWN_CHALLENGE
    rules = ((Dialect.HASHED_NONCE, challenge_with_nonce(nonce, digest)), (echoed, own))
    for dialect, c in rules:
        if sum_of_multiples([(base, s), (public, N - c)]) == commitment:
            return dialect, c
    return None


def _point(x: int, y: int, field: str) -> G1:
    return decode_g1(b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big"), field=field)


def _tpm_point(point: Any, name: str) -> G1:
    x, y = (int.from_bytes(bytes(part), "big") for part in (point.point.x, point.point.y))
    try:
        return _point(x, y, f"TPM2_Commit.{name}")
    except OverflowError:
        raise FormatError("a coordinate has too many bytes", field=f"TPM2_Commit.{name}") from None
