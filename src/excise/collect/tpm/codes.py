"""Numbers of TPM 2.0: commands, algorithms, curves, handles, and what response codes mean.

Source: TCG, Trusted Platform Module Library Specification, Family 2.0, Part 2: Structures.
"""

from __future__ import annotations

from typing import Final

NO_SESSIONS: Final = 0x8001
SESSIONS: Final = 0x8002
HASH_CHECK_TICKET: Final = 0x8024

RH_OWNER: Final = 0x40000001
RH_NULL: Final = 0x40000007
RS_PASSWORD: Final = 0x40000009

SHA1: Final = 0x0004
HMAC: Final = 0x0005
AES: Final = 0x0006
KEYED_HASH: Final = 0x0008
SHA256: Final = 0x000B
NULL: Final = 0x0010
RSASSA: Final = 0x0014
ECDSA: Final = 0x0018
ECDAA: Final = 0x001A
RSA: Final = 0x0001
ECC: Final = 0x0023
CFB: Final = 0x0043

NIST_P256: Final = 0x0003
BN_P256: Final = 0x0010

COMMANDS: Final = {
    "PCR_Allocate": 0x11F,
    "NV_UndefineSpace": 0x122,
    "NV_DefineSpace": 0x12A,
    "CreatePrimary": 0x131,
    "NV_Write": 0x137,
    "PCR_Reset": 0x13D,
    "SequenceComplete": 0x13E,
    "SelfTest": 0x143,
    "Startup": 0x144,
    "Shutdown": 0x145,
    "NV_Read": 0x14E,
    "Create": 0x153,
    "ECDH_ZGen": 0x154,
    "HMAC": 0x155,
    "Load": 0x157,
    "Quote": 0x158,
    "SequenceUpdate": 0x15C,
    "Sign": 0x15D,
    "Unseal": 0x15E,
    "ContextLoad": 0x161,
    "ContextSave": 0x162,
    "FlushContext": 0x165,
    "ReadPublic": 0x173,
    "StartAuthSession": 0x176,
    "GetCapability": 0x17A,
    "GetRandom": 0x17B,
    "GetTestResult": 0x17C,
    "Hash": 0x17D,
    "PCR_Read": 0x17E,
    "PolicyPCR": 0x17F,
    "ReadClock": 0x181,
    "PCR_Extend": 0x182,
    "HashSequenceStart": 0x186,
    "PolicyGetDigest": 0x189,
    "Commit": 0x18B,
}

ALGORITHMS: Final = {
    0x0001: "RSA",
    0x0003: "TDES",
    0x0004: "SHA1",
    0x0005: "HMAC",
    0x0006: "AES",
    0x0007: "MGF1",
    0x0008: "KEYEDHASH",
    0x000A: "XOR",
    0x000B: "SHA256",
    0x000C: "SHA384",
    0x000D: "SHA512",
    0x0012: "SM3_256",
    0x0013: "SM4",
    0x0014: "RSASSA",
    0x0015: "RSAES",
    0x0016: "RSAPSS",
    0x0017: "OAEP",
    0x0018: "ECDSA",
    0x0019: "ECDH",
    0x001A: "ECDAA",
    0x001B: "SM2",
    0x001C: "ECSCHNORR",
    0x001D: "ECMQV",
    0x0020: "KDF1_SP800_56A",
    0x0021: "KDF2",
    0x0022: "KDF1_SP800_108",
    0x0023: "ECC",
    0x0025: "SYMCIPHER",
    0x0026: "CAMELLIA",
    0x0027: "SHA3_256",
    0x0028: "SHA3_384",
    0x0029: "SHA3_512",
    0x003F: "CMAC",
    0x0040: "CTR",
    0x0041: "OFB",
    0x0042: "CBC",
    0x0043: "CFB",
    0x0044: "ECB",
}
CURVES: Final = {
    0x0001: "NIST_P192",
    0x0002: "NIST_P224",
    0x0003: "NIST_P256",
    0x0004: "NIST_P384",
    0x0005: "NIST_P521",
    0x0010: "BN_P256",
    0x0011: "BN_P638",
    0x0020: "SM2_P256",
    0x0030: "BP_P256_R1",
    0x0031: "BP_P384_R1",
    0x0032: "BP_P512_R1",
}
DIGEST_BYTES: Final = {
    0x0004: 20,
    0x000B: 32,
    0x000C: 48,
    0x000D: 64,
    0x0012: 32,
    0x0027: 32,
    0x0028: 48,
    0x0029: 64,
}

PATIENCE: Final = {
    0x908: "yielded",
    0x90A: "testing itself",
    0x920: "limiting the rate of NV writes",
    0x922: "busy",
}
"""Warnings that ask to send the command again: TPM_RC_YIELDED, TESTING, NV_RATE, RETRY."""

_FLUSH: Final = "Use the resource manager (device:/dev/tpmrm0), or end what holds them"
_FREE_OBJECTS: Final = f"{_FLUSH}; `tpm2_flushcontext -t` drops objects left behind"
_FREE_SESSIONS: Final = f"{_FLUSH}; `tpm2_flushcontext -l` drops sessions left behind"

_MEANINGS: Final[dict[int, tuple[str, str]]] = {
    0x100: ("was not started (TPM_RC_INITIALIZE)", "Run `tpm2_startup -c`"),
    0x101: ("is in failure mode (TPM_RC_FAILURE)", "Restart the machine"),
    0x120: ("has this command switched off (TPM_RC_DISABLED)", ""),
    0x143: ("does not know this command (TPM_RC_COMMAND_CODE)", ""),
    0x902: ("has no room for another object (TPM_RC_OBJECT_MEMORY)", _FREE_OBJECTS),
    0x903: ("has no room for another session (TPM_RC_SESSION_MEMORY)", _FREE_SESSIONS),
    0x904: ("is out of memory (TPM_RC_MEMORY)", _FREE_OBJECTS),
    0x905: ("has no session handle left (TPM_RC_SESSION_HANDLES)", _FREE_SESSIONS),
    0x906: ("has no object handle left (TPM_RC_OBJECT_HANDLES)", _FREE_OBJECTS),
    0x907: ("takes no PCR command at this locality (TPM_RC_LOCALITY)", ""),
    0x921: (
        "is in lockout after failed authorisations (TPM_RC_LOCKOUT)",
        "Wait for its recovery time, or clear it with `tpm2_dictionarylockout -c`",
    ),
}
_FORMAT_ONE: Final = {
    0x01: "an asymmetric algorithm it does not have (TPM_RC_ASYMMETRIC)",
    0x03: "a hash it does not have (TPM_RC_HASH)",
    0x04: "a value out of range (TPM_RC_VALUE)",
    0x05: "a hierarchy that is switched off (TPM_RC_HIERARCHY)",
    0x07: "a key size it does not have (TPM_RC_KEY_SIZE)",
    0x0A: "a type it does not have (TPM_RC_TYPE)",
    0x0B: "a handle that is not there (TPM_RC_HANDLE)",
    0x0E: "an authorisation that fails (TPM_RC_AUTH_FAIL)",
    0x12: "a scheme it does not have (TPM_RC_SCHEME)",
    0x15: "a size it does not take (TPM_RC_SIZE)",
    0x16: "a symmetric algorithm it does not have (TPM_RC_SYMMETRIC)",
    0x1D: "a policy that fails (TPM_RC_POLICY_FAIL)",
    0x22: "an authorisation that is wrong (TPM_RC_BAD_AUTH)",
    0x26: "a curve it does not have (TPM_RC_CURVE)",
}
_ABSENT: Final = frozenset({0x143, 0x81, 0x83, 0x87, 0x8A, 0x92, 0x96, 0xA6})


def base_code(code: int) -> int:
    """Return a response code without the number of the parameter, handle or session it is of."""
    return code & 0xBF if code & 0x80 else code & 0xFFF


def explain(code: int) -> tuple[str, str]:
    """Return what a response code says of the TPM, and what to do about it, if known."""
    base = base_code(code)
    if base in _MEANINGS:
        return _MEANINGS[base]
    if base in PATIENCE:
        return f"kept asking to try again: it is {PATIENCE[base]}", "Try again when it is idle"
    if code & 0x80 and base & 0x3F in _FORMAT_ONE:
        hint = "The owner's password is set: it must be empty" if base & 0x3F in (0x22,) else ""
        return f"refuses {_FORMAT_ONE[base & 0x3F]}", hint
    return f"refuses with response code {code:#x}", ""


def is_absence(code: int) -> bool:
    """Return whether a response code says that the TPM does not have what was asked for."""
    return base_code(code) in _ABSENT
