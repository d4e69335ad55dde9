"""Measure what each preset costs in instructions and print the Markdown of RESULTS.md.

python benchmarks/lab_presets.py [--kernel 6.12] [--jobs 1] [PRESET ...]
"""

from __future__ import annotations

import argparse
import sys
import time

from excise.lab import Machine, Progress, compare, preset_jobs, presets
from excise.report.lab import build_lab_comparison
from excise.report.markdown import render_markdown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="6.12")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("presets", nargs="*", default=list(presets()))
    given = parser.parse_args()
    started = time.monotonic()

    def show(progress: Progress) -> None:
        if progress.stage in ("done", "failed"):
            took = time.monotonic() - started
            text = f"{took:6.0f} s  {progress.done}/{progress.total}  {progress.configuration}"
            print(f"{text}: {progress.stage}", file=sys.stderr)

    jobs = preset_jobs(Machine(kernel=given.kernel), presets=given.presets)
    found = compare(jobs, parallel=given.jobs, on_progress=show)
    print(render_markdown(build_lab_comparison(found, title=f"Presets on kernel {given.kernel}")))
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
