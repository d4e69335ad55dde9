"""CoRIM and CoMID: reference values and trust anchors, read, written, signed and checked."""

from excise.evidence.corim.document import (
    MAX_CORIM_BYTES,
    Comid,
    Corim,
    CorimOptions,
    is_comid,
    read_comid,
    read_corim,
    sign_corim,
    verify_corim,
)
from excise.evidence.corim.profiles import (
    KNOWN_PROFILES,
    PSA_PROFILE,
    PSA_PROFILES_OLD,
    Endorsements,
    ReferenceValue,
    TrustAnchor,
    check_content,
    read_endorsements,
)
from excise.evidence.corim.store import ReferenceStore, accept_corim, load_store
from excise.evidence.corim.template import (
    build_corim,
    build_from_folder,
    builds_in,
    component_template,
    psa_templates,
    write_templates,
)

__all__ = [
    "KNOWN_PROFILES",
    "MAX_CORIM_BYTES",
    "PSA_PROFILE",
    "PSA_PROFILES_OLD",
    "Comid",
    "Corim",
    "CorimOptions",
    "Endorsements",
    "ReferenceStore",
    "ReferenceValue",
    "TrustAnchor",
    "accept_corim",
    "build_corim",
    "build_from_folder",
    "builds_in",
    "check_content",
    "component_template",
    "is_comid",
    "load_store",
    "psa_templates",
    "read_comid",
    "read_corim",
    "read_endorsements",
    "sign_corim",
    "verify_corim",
    "write_templates",
]
