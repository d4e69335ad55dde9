"""For a machine without IMA: the list that a kernel with IMA off has, and a software TPM to fit.

python3 sensor_list.py TCTI LIST: writes a list with its one entry, the boot_aggregate over PCRs 0
to 9, and extends PCR 10 of the TPM by it. Not for a TPM in which anything is kept.

Source: Linux, security/integrity/ima/ima_init.c and ima_template_lib.c, template ima-ng.
"""

import hashlib
import struct
import sys
from pathlib import Path

from tpm2_pytss import ESYS_TR, TPM2_ALG, TPML_DIGEST_VALUES, TPMT_HA, TPMU_HA

from excise.collect.tpm import allocated_pcrs, open_tpm, pcr_reader


def field(data: bytes) -> bytes:
    """Return a field of a template: its length, then its bytes."""
    return struct.pack("<I", len(data)) + data


def main(tcti: str, path: Path) -> None:
    """Write the list and extend the TPM's PCR 10."""
    banks = [bank for bank in allocated_pcrs(tcti) if bank.startswith("sha")]
    with open_tpm(tcti) as tpm:
        pcrs = pcr_reader(tpm)()
        aggregate = hashlib.sha256(b"".join(pcrs["sha256"][index] for index in range(10)))
        data = field(b"sha256:\0" + aggregate.digest()) + field(b"boot_aggregate\0")
        record = struct.pack("<I", 10) + hashlib.sha1(data).digest() + field(b"ima-ng")
        path.write_bytes(record + field(data))
        if any(pcrs[banks[0]][10]):
            return  # extended already: the same folder is used again
        values = [
            TPMT_HA(
                hashAlg=getattr(TPM2_ALG, bank.upper()),
                digest=TPMU_HA(**{bank: hashlib.new(bank, data).digest()}),
            )
            for bank in banks
        ]
        tpm.pcr_extend(ESYS_TR.PCR10, TPML_DIGEST_VALUES(values))


main(sys.argv[1], Path(sys.argv[2]))
