"""The verifier keeps to its own OpenAPI description, whatever is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from excise.evidence.corim import CorimOptions
from verifier_runner import running

HERE = Path(__file__).parent


@pytest.mark.lab
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    search = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": search}
    with running(tmp_path, corim=CorimOptions(require_signed=False)) as client:
        done = subprocess.run(
            [
                *(str(program), "run", f"{client.base_url}/openapi.json", "--checks", "all"),
                *("--max-examples", "40", "--seed", "1", "--no-color"),
            ],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 selected / 7 total" in done.stdout


def test_every_answer_that_is_described_is_given_and_no_other(tmp_path: Path) -> None:
    """The description names every path; its schemas hold for what the service says."""
    from jsonschema import Draft202012Validator

    with running(tmp_path) as client:
        told = client.get("/openapi.json").json()
        answer = client.post("/challenge-response/v1/newSession")
        info = client.get("/.well-known/veraison/verification").json()
        problem = client.post("/challenge-response/v1/newSession?nonceSize=1")
    schemas = told["components"]["schemas"]
    for name, value in (
        ("Session", answer.json()),
        ("Discovery", info),
        ("Problem", problem.json()),
    ):
        schema = json.loads(json.dumps(schemas[name]))
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(value)
    assert sorted(told["paths"]) == [
        "/.well-known/veraison/provisioning",
        "/.well-known/veraison/verification",
        "/challenge-response/v1/newSession",
        "/challenge-response/v1/session/{session}",
        "/endorsement-provisioning/v1/submit",
    ]
