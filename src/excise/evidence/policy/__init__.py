"""Reference values for IMA entries: compiled once, shared, named by their content.

`PolicyBuilder` reads checksum lists, keylime policies and exclude lists; `Policy` is what they
become; `appraise_entries` judges the entries of a list by it.
"""

from __future__ import annotations

from excise.evidence.policy.appraise import (
    Accept,
    AppraisalOptions,
    EntryAppraisal,
    PolicyAppraisal,
    PolicyAppraiser,
    PolicyEntry,
    Treatment,
    appraise_entries,
)
from excise.evidence.policy.buffers import LearnKeys
from excise.evidence.policy.build import PolicyBuilder
from excise.evidence.policy.classes import EntryClass
from excise.evidence.policy.model import Policy
from excise.evidence.policy.state import PolicyState

__all__ = [
    "Accept",
    "AppraisalOptions",
    "EntryAppraisal",
    "EntryClass",
    "LearnKeys",
    "Policy",
    "PolicyAppraisal",
    "PolicyAppraiser",
    "PolicyBuilder",
    "PolicyEntry",
    "PolicyState",
    "Treatment",
    "appraise_entries",
]
