"""PSA attestation tokens of three profiles, and the claims in them."""

from excise.evidence.psa.claims import (
    PsaClaims,
    SoftwareComponent,
    check_claims,
    claims_from_json,
    encode_claims,
)
from excise.evidence.psa.lifecycle import Lifecycle, lifecycle_of
from excise.evidence.psa.profiles import PROFILE_1, PROFILE_2, PROFILE_TFM, PROFILES, Profile
from excise.evidence.psa.token import (
    TokenAppraisal,
    TokenOptions,
    TrustAnchors,
    verify_token,
)

__all__ = [
    "PROFILES",
    "PROFILE_1",
    "PROFILE_2",
    "PROFILE_TFM",
    "Lifecycle",
    "Profile",
    "PsaClaims",
    "SoftwareComponent",
    "TokenAppraisal",
    "TokenOptions",
    "TrustAnchors",
    "check_claims",
    "claims_from_json",
    "encode_claims",
    "lifecycle_of",
    "verify_token",
]
