"""A member's key in the software TPM of a file of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from daa_group import NONCE, group
from excise.attest.daa.keys import prove_member_key
from excise.attest.daa.tpm import TpmKey, open_key
from excise.attest.daa.tpm_setup import TpmKeyPlace, create_key
from excise.evidence.daa import Credential
from software_tpm import SoftwareTpm


@pytest.fixture(scope="module")
def place(swtpm: SoftwareTpm) -> TpmKeyPlace:
    return create_key(swtpm.tcti)


@pytest.fixture
def key(place: TpmKeyPlace) -> Iterator[TpmKey]:
    with open_key(place) as opened:
        yield opened


@pytest.fixture(scope="module")
def credential(place: TpmKeyPlace) -> Credential:
    with open_key(place) as opened:
        return group().secret.admit(prove_member_key(opened, nonce=NONCE), nonce=NONCE)[0]
