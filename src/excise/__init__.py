"""Measure what Linux security and attestation mechanisms cost, and prove they were on.

The program `excise` is made of these packages, and a program of one's own may import them too:

perf: time the steps of a program (`Recorder`), for `excise import` to read.
capture: what was measured, as a folder or an archive.
collect: what touches the machine under test.
formats: foreign formats, bytes to typed records.
events: captures as tables (`events.load.load_capture`).
reference: published figures, as data (`load`).
stats: statistics of repeated measurements, arrays in.
cost: what a mechanism costs (`cost.comparison.compare_configurations`).
evidence: checks of lists, logs, quotes, tokens and signatures (`evidence.ima.verify_list`).
attest: issuer, member, sensor, attester and verifiers, as programs.
lab: kernels in QEMU, costs counted in instructions (`run_guest`).
campaign: what to run, where and in which order (`campaign.run.run_campaign`).
fleet: the evidence of many hosts (`fleet.rounds.verify_fleet`).
report: one model, rendered as text, Markdown, CSV, JSON, LaTeX and HTML.
errors: what all of these raise, `ExciseError`.
"""

# Not importlib.metadata: it would take a third of the start-up of a short command.
from excise._core import __version__

__all__ = ["__version__"]
