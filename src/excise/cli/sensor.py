"""`excise sensor`: capture an image, embed the face, collect the integrity log, sign and send."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from excise.cli.daa_options import TpmOption
from excise.cli.options import (
    CaOption,
    JsonOption,
    print_json,
    read_input,
    refuse_idle,
    written_later,
)
from excise.cli.sensor_verifier import verifier
from excise.errors import Refused, UsageError
from excise.files import LIMIT_BYTES
from excise.units import counted

if TYPE_CHECKING:
    from excise.attest.daa.keys import MemberKey
    from excise.attest.sensor.collect import Collector
    from excise.attest.sensor.protocol import Answer
    from excise.attest.sensor.transaction import Membership
    from excise.evidence.sensor_message import PcrBanks
    from excise.perf import Recorder

app = typer.Typer(
    no_args_is_help=True,
    help="A biometric sensor that proves its state: capture, embed, collect, send.",
)

app.command("verifier")(verifier)

SourceOption = Annotated[
    str,
    typer.Option(
        "--source", metavar="DEVICE|FILE|FOLDER", help="A camera, an image, or a folder of images."
    ),
]
OutputOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to; - for standard output.",
        callback=written_later,
    ),
]
ListOption = Annotated[
    Path,
    typer.Option("--list", metavar="FILE", help="The kernel's binary measurement list."),
]
PcrFileOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pcrs",
        metavar="FILE",
        help="PCR values from a file in place of the TPM's, as for excise verify ima.",
        show_default=False,
    ),
]
VerifierOption = Annotated[
    str, typer.Option("--verifier", metavar="URL", help="The verifier's service.")
]
MemberOption = Annotated[
    Path,
    typer.Option(
        "--member", metavar="FOLDER", help="The sensor's membership, of excise daa member join."
    ),
]
DEFAULT_LIST = Path("/sys/kernel/security/ima/binary_runtime_measurements")


@app.command("capture")
def capture(source: SourceOption = "/dev/video0", output: OutputOption = "-") -> None:
    """Capture one image and write it as PNG.

    Example: excise sensor capture --source /dev/video0 -o image.png
    """
    from excise.attest.sensor import open_source

    with open_source(source) as opened:
        image = opened.capture()
    _write(output, image.to_png())


@app.command("embed")
def embed(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image; - for standard input.")],
    output: OutputOption = "-",
) -> None:
    """Write the embedding of the largest face in an image.

    Exit 1 if there is no face.

    Example: excise sensor embed image.png -o face.embedding
    """
    from excise.attest.sensor import DlibEmbedder, read_image

    found = DlibEmbedder().embed(read_image(read_input(image), source=image))
    _write(output, found.to_bytes())


@app.command("collect")
def collect(
    embedding: Annotated[
        str, typer.Argument(metavar="EMBEDDING", help="As sensor embed writes it; - for stdin.")
    ],
    output: OutputOption = "-",
    measurement_list: ListOption = DEFAULT_LIST,
    tpm: TpmOption = None,
    pcrs: PcrFileOption = None,
) -> None:
    """Collect the whole integrity list, all PCRs and an embedding into one message.

    Prints the message's SHA-512 on standard error.

    Example: excise sensor collect face.embedding --tpm device:/dev/tpmrm0 -o message
    """
    from excise.attest.sensor import Embedding
    from excise.evidence.sensor_message import message_sha512

    found = Embedding.from_bytes(read_input(embedding), source=embedding)
    with _collector(measurement_list, tpm, pcrs, whole_log=True) as collector:
        message = collector.collect(found).to_bytes()
    _write(output, message)
    typer.echo(message_sha512(message), err=True)


@app.command("send")
def send(
    message: Annotated[
        str, typer.Argument(metavar="MESSAGE", help="As sensor collect writes it; - for stdin.")
    ],
    verifier: VerifierOption,
    member: MemberOption,
    tpm: TpmOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a message for a fresh nonce of the verifier, send it, and print the answer.

    Exit 0 only if the verifier accepts it.

    Example: excise sensor send message --verifier https://verifier:8443 --member member
    """
    from excise.attest.sensor.transaction import send as send_message
    from excise.attest.service import ServiceClient
    from excise.evidence.sensor_message import read_sensor_message

    data = read_input(message, limit_bytes=LIMIT_BYTES)
    read_sensor_message(data)
    with _membership(member, tpm) as membership, ServiceClient(verifier, ca_file=ca) as client:
        answer = send_message(data, membership=membership, client=client)
    _conclude([answer], as_json=as_json)


@app.command("transaction")
def transaction(
    context: typer.Context,
    verifier: VerifierOption,
    member: MemberOption,
    source: SourceOption = "/dev/video0",
    measurement_list: ListOption = DEFAULT_LIST,
    tpm: TpmOption = None,
    pcrs: PcrFileOption = None,
    loop: Annotated[int, typer.Option("--loop", min=1, help="Transactions to make.")] = 1,
    perf: Annotated[
        bool,
        typer.Option("--perf", help="Print an RA_PERF line for each step on standard output."),
    ] = False,
    whole_log: Annotated[
        bool, typer.Option("--whole-log", help="Read and send the whole list every time.")
    ] = False,
    hand_over: Annotated[
        Literal["memory", "files"],
        typer.Option(
            "--hand-over",
            help="By files each step is a program of its own, as the original had it.",
        ),
    ] = "memory",
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Capture, embed, collect and send.

    Exit 0 only if the verifier accepts every transaction. The list is read on from where the
    verifier has it, so that collecting does not grow with it.

    Example: excise sensor transaction --verifier https://verifier:8443 --member member --loop 31
    --perf
    """
    from excise.perf import Recorder

    if as_json and perf:
        raise UsageError("--json and --perf both write to standard output")
    recorder = Recorder(file=sys.stdout, enabled=perf)
    if hand_over == "files":
        refuse_idle(context, ["whole_log"], "how --hand-over files always does it")
        from excise.attest.sensor.by_files import FileHandOver

        steps = FileHandOver(
            source=source,
            verifier=verifier,
            member=member,
            measurement_list=measurement_list,
            tpm=tpm,
            pcrs=tuple(pcrs or ()),
            ca=ca,
            perf=recorder,
        )
        _transact(steps.transact, recorder, loop, as_json=as_json)
        return
    from excise.attest.sensor import DlibEmbedder, open_source
    from excise.attest.sensor.transaction import Sensor
    from excise.attest.service import ServiceClient

    with ExitStack() as stack:
        membership = stack.enter_context(_membership(member, tpm))
        sensor = Sensor(
            source=stack.enter_context(open_source(source)),
            embedder=DlibEmbedder(),
            collector=stack.enter_context(
                _collector(measurement_list, tpm, pcrs, whole_log=whole_log, key=membership.key)
            ),
            membership=membership,
            client=stack.enter_context(ServiceClient(verifier, ca_file=ca)),
            perf=recorder,
        )
        _transact(sensor.transact, recorder, loop, as_json=as_json)


def _transact(
    transact: Callable[[], Answer], recorder: Recorder, loop: int, *, as_json: bool
) -> None:
    """Make the transactions, print each one's marks when it is done, and conclude."""
    answers = []
    try:
        for _ in range(loop):
            answers.append(transact())
            recorder.flush()
    finally:
        recorder.flush()
    _conclude(answers, as_json=as_json, quiet=recorder.enabled)


def _conclude(answers: list[Answer], *, as_json: bool, quiet: bool = False) -> None:
    import msgspec

    refused = [answer for answer in answers if answer.outcome != "PASSED"]
    if as_json:
        print_json(msgspec.to_builtins(answers if len(answers) > 1 else answers[0]))
    elif not quiet:
        for answer in answers:
            typer.echo(f"{answer.transaction}: {answer.outcome}")
            for reason in answer.reasons:
                typer.echo(f"  {reason}")
    if refused:
        if as_json:
            raise typer.Exit(1)
        reasons = dict.fromkeys(reason for answer in refused for reason in answer.reasons)
        raise Refused(
            f"{len(refused)} of {counted(len(answers), 'transaction')} not accepted",
            differences=tuple(reasons) if quiet else (),  # else they stand above
        )


@contextmanager
def _collector(
    measurement_list: Path,
    tpm: str | None,
    pcr_files: list[str] | None,
    *,
    whole_log: bool,
    key: MemberKey | None = None,
) -> Iterator[Collector]:
    from excise.attest.sensor.collect import Collector

    with (
        _pcr_reader(tpm, pcr_files, key) as pcrs,
        Collector(pcrs=pcrs, measurement_list=measurement_list, whole_log=whole_log) as collector,
    ):
        yield collector


@contextmanager
def _pcr_reader(
    tcti: str | None, files: list[str] | None, key: MemberKey | None
) -> Iterator[Callable[[], PcrBanks]]:
    """Yield what reads all PCRs: from files where given, else from a TPM that is kept open.

    Args:
        tcti: Where the TPM is.
        files: Files to read in place of a TPM.
        key: The member's key; where it is in a TPM, that one is read, by the same connection.
    """
    if files:
        from excise.evidence.pcr import merge_pcrs, read_pcr_path

        yield lambda: merge_pcrs([read_pcr_path(Path(name)) for name in files])
        return
    from excise.attest.daa.tpm import TpmKey
    from excise.collect.tpm import open_tpm, pcr_reader

    if isinstance(key, TpmKey):
        yield pcr_reader(key.tpm)
        return
    with open_tpm(tcti or "device:/dev/tpmrm0") as tpm:
        yield pcr_reader(tpm)


@contextmanager
def _membership(folder: Path, tpm: str | None) -> Iterator[Membership]:
    from excise.attest.daa.folders import member_key, read_credential
    from excise.attest.sensor.transaction import Membership

    with member_key(folder, tcti=tpm) as key:
        yield Membership(key=key, credential=read_credential(folder))


def _write(output: str, data: bytes) -> None:
    from excise.report.write import open_output

    with open_output(output) as opened:
        opened.write(data)
