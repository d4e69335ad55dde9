"""What a guest's evidence says: its IMA list replayed against its PCRs, its quote checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.evidence.ima.verify import ImaAppraisal
    from excise.evidence.quote import QuoteAppraisal
    from excise.lab.run import GuestResult


def verify_ima(
    result: GuestResult, *, list_name: str = "binary_runtime_measurements"
) -> ImaAppraisal:
    """Return whether the guest's IMA list leads to its PCR 10 in every bank.

    Args:
        result: A guest that ran in TPM mode.
        list_name: Which of its lists.

    Raises:
        UsageError: If the guest had no TPM or no list.
        FormatError: If the list or the PCRs cannot be read.
    """
    from excise.evidence.ima.verify import verify_list
    from excise.evidence.pcr import read_pcr_bytes

    pcrs = result.evidence.get("pcrs.txt")
    listed = result.evidence.get(list_name)
    if pcrs is None or listed is None:
        missing = "PCRs" if pcrs is None else list_name
        raise UsageError(
            f"the guest {result.configuration} brought back no {missing}",
            hint='Run it with mode = "tpm" and a preset that measures',
        )
    return verify_list(listed, pcrs=read_pcr_bytes(pcrs, source=f"{result.configuration}/pcrs.txt"))


def verify_guest_quote(result: GuestResult, *, qualifying_data: bytes) -> QuoteAppraisal:
    """Return whether the quote that the guest's TPM gave is sound and fits its PCRs.

    Args:
        result: A guest that ran with `quote_script`.
        qualifying_data: What the quote had to sign.

    Raises:
        UsageError: If there is no quote.
        FormatError: If the TPM's answers cannot be read.
    """
    from excise.lab.quote import read_quote

    return read_quote(result.evidence, qualifying_data=qualifying_data)
