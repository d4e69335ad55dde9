"""Reference values for IMA entries: compiled once, shared, named by their content.

`PolicyBuilder` reads checksum lists, keylime policies and exclude lists; `Policy` is what they
become; `appraise_covered` judges by it what PCR values cover of a list, and `appraise_entries` any
entries.
"""

from __future__ import annotations

from excise.evidence.policy.appraise import (
    Accept,
    AppraisalOptions,
    EntryAppraisal,
    PolicyAppraisal,
    PolicyAppraiser,
    Treatment,
    appraise_entries,
)
from excise.evidence.policy.buffers import LearnKeys
from excise.evidence.policy.build import PolicyBuilder
from excise.evidence.policy.classes import EntryClass
from excise.evidence.policy.entry import PolicyEntry
from excise.evidence.policy.lists import IMA_PCR, appraise_covered, judge_covered, read_covered
from excise.evidence.policy.model import Policy
from excise.evidence.policy.state import PolicyState

__all__ = [
    "IMA_PCR",
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
    "appraise_covered",
    "appraise_entries",
    "judge_covered",
    "read_covered",
]
