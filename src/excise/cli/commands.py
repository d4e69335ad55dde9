"""The program's commands by name: where each lives, so that only the one that runs is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Commands under a common word, such as `excise verify`.

    Attributes:
        summary: What the group is for, in one line.
        commands: As `COMMANDS`.
    """

    summary: str
    commands: Mapping[str, str]


SECTIONS: Mapping[str, Mapping[str, str | Group]] = {
    # A place is "module:attribute", with a function or a Typer program for attribute.
    "Measure": {
        "demo": "excise.cli.demo:demo",
        "doctor": "excise.cli.doctor:doctor",
        "run": "excise.cli.run:run",
        "campaign": "excise.cli.campaign:app",
        "trace": "excise.cli.trace:trace",
        "boot": Group(
            "Boots by stage: from captures, of this host, from files.",
            {
                "show": "excise.cli.boot:show",
                "record": "excise.cli.boot:record",
                "import": "excise.cli.boot:import_",
            },
        ),
        "tpm": "excise.cli.tpm:app",
        "selftest": "excise.cli.selftest:app",
        "perf": Group(
            "Instrument a program of your own with RA_PERF lines.",
            {"header": "excise.cli.perf:header", "cost": "excise.cli.perf:cost"},
        ),
    },
    "Read, compare, predict": {
        "import": "excise.cli.import_:import_",
        "show": "excise.cli.show:show",
        "compare": "excise.cli.compare:compare",
        "attribute": "excise.cli.attribute:attribute",
        "report": "excise.cli.report:report",
        "gate": "excise.cli.gate:gate",
        "lint": "excise.cli.lint:lint",
        "predict": "excise.cli.predict:predict",
    },
    "Kernels in guests": {
        "lab": "excise.cli.lab:app",
    },
    "Verify": {
        "verify": Group(
            "Check evidence: logs, quotes, captures.",
            {
                "ima": "excise.cli.verify_ima:ima",
                "quote": "excise.cli.verify_quote:quote",
                "eventlog": "excise.cli.verify_eventlog:eventlog",
                "daa": "excise.cli.daa_verify:daa",
                "capture": "excise.cli.verify_capture:capture",
                "token": "excise.cli.verify_token:token",
                "ear": "excise.cli.verify_token:ear",
            },
        ),
        "fleet": "excise.cli.fleet:app",
        "corim": "excise.cli.corim:app",
    },
    "Attest": {
        "sensor": "excise.cli.sensor:app",
        "daa": Group(
            "Direct anonymous attestation: a group's issuer, its members, their signatures.",
            {
                "issuer": "excise.cli.daa_issuer:app",
                "member": "excise.cli.daa_member:app",
                "verify": "excise.cli.daa_verify:daa",
                "link": "excise.cli.daa_link:link",
                "revoke": "excise.cli.daa_revoke:revoke",
            },
        ),
        "attester": "excise.cli.attester:attester",
        "verifier": "excise.cli.verifier:app",
    },
}
"""The program's commands, under the headings of its help text."""

COMMANDS: Mapping[str, str | Group] = {
    name: place for section in SECTIONS.values() for name, place in section.items()
}
