"""A policy of one host's verified list, by which the others are judged."""

from __future__ import annotations

from collections.abc import Mapping

from excise.errors import Refused, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.ima import verify_list
from excise.evidence.pcr import read_pcr_bytes
from excise.evidence.policy import Policy, PolicyBuilder, read_covered
from excise.fleet.host import SMALL_BYTES
from excise.fleet.layout import IMA_LISTS, sort_items
from excise.fleet.places import folder_at


def policy_of_host(host: str, hosts: Mapping[str, str]) -> Policy:
    """Return a policy that allows the files of a host's list, as far as its PCR values cover them.

    That the host itself is sound is the caller's to know.

    Raises:
        UsageError: There is no such host, or it has no list or no PCR values.
        Refused: Its list does not lead to its PCR values.
        FormatError: Its list or values cannot be read.
    """
    if host not in hosts:
        raise UsageError(f"there is no host {host!r}", hint=f"Hosts: {', '.join([*hosts][:8])}…")
    folder = folder_at(hosts[host])
    evidence = sort_items(folder.items())
    name, values = evidence.first(IMA_LISTS), evidence.pcrs
    if name is None or values is None:
        raise UsageError("a reference needs a measurement list and PCR values", source=hosts[host])
    pcrs = read_pcr_bytes(folder.read(values, limit_bytes=SMALL_BYTES), source=values)
    builder = PolicyBuilder()
    with folder.fetched(name) as path:
        found = verify_list(path, pcrs=pcrs)
        if found.verdict is not Outcome.PASSED:
            raise Refused("the list of the reference host does not pass", source=hosts[host])
        for row in read_covered(path, found) or ():
            if row.name and row.digest and not row.violation:
                kind = "verity:" if row.digest_type == "verity" else ""
                if row.name != b"boot_aggregate" and row.buf is None:
                    builder.add_digest(
                        row.name, algorithm=kind + (row.algorithm or "sha1"), digest=row.digest
                    )
    return builder.compile()
