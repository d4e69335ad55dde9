"""The workloads and the mechanisms they run under, on this kernel."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from skips import skip

WORKLOADS = [
    "null", "read", "write", "stat", "fstat", "open_close", "create_0k", "delete_0k", "create_10k",
    "delete_10k", "pipe", "fork_exit", "fork_execve", "mmap_fault", "unix_connect", "signal",
]  # fmt: skip


def ask(probe: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the probe; its exit code must be the given one."""
    done = subprocess.run([probe, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def measure(probe: Path, workload: str, *words: str) -> dict[str, Any]:
    """Return the one line that a workload prints."""
    done = ask(probe, "run", "--workload", workload, *words)
    assert done.stderr == ""
    (text,) = done.stdout.splitlines()
    line: dict[str, Any] = json.loads(text)
    return line


def abi(probe: Path) -> int:
    """Return this kernel's Landlock ABI, by the probe's own account."""
    answer: int = json.loads(ask(probe, "info").stdout)["landlock_abi"]
    return answer


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_calibrates_itself(probe: Path, tmp_path: Path, workload: str) -> None:
    line = measure(probe, workload, "--batches", "3", "--directory", str(tmp_path))
    assert line["workload"] == workload
    assert line["calibrated"] is True
    assert len(line["op_ns"]) == 3
    assert all(0 < op_ns < 1e9 for op_ns in line["op_ns"])
    assert line["first_op_ns"] > 0
    assert line["clock"] == "CLOCK_MONOTONIC_RAW"
    assert line["clock_resolution_ns"] >= 1
    fastest_ns = min(line["op_ns"]) * line["operations"]
    assert line["clock_resolution_ns"] / fastest_ns < 0.001
    assert fastest_ns > 500_000
    assert line["mechanism"] == {"no_new_privs": False}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_runs_under_all_mechanisms(
    probe: Path, tmp_path: Path, workload: str
) -> None:
    words = ["--operations", "3", "--batches", "2", "--directory", str(tmp_path)]
    done = subprocess.run(
        [probe, "run", "--workload", workload, *words, "--landlock", "--seccomp", "20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["mechanism"] == {
        "no_new_privs": True,
        "landlock_abi": abi(probe),
        "landlock_denies_outside": True,
        "seccomp_rules": 20,
        "seccomp_mode": 2,
        "seccomp_filters": 1,
    }
    assert list(tmp_path.iterdir()) == []


def test_no_new_privileges_alone(probe: Path) -> None:
    line = measure(probe, "null", "--batches", "1", "--no-new-privs")
    assert line["mechanism"] == {"no_new_privs": True}


def test_more_rules_take_longer_as_all_are_evaluated(probe: Path) -> None:
    def null_ns(*words: str) -> float:
        fastest_ns: float = min(
            min(measure(probe, "null", "--batches", "21", *words)["op_ns"]) for _ in range(3)
        )
        return fastest_ns

    bare_ns, few_ns, many_ns = null_ns(), null_ns("--seccomp", "1"), null_ns("--seccomp", "2000")
    assert bare_ns < few_ns < many_ns
    assert many_ns > few_ns + 300  # 2,000 comparisons take some time on any processor


def test_too_few_operations_are_refused_with_their_line(probe: Path) -> None:
    done = ask(probe, "run", "--workload", "null", "--operations", "2", code=1)
    line = json.loads(done.stdout)
    assert line["resolution_ratio"] > 0.001
    assert "2 operations are too few" in line["warning"]
    assert len(line["op_ns"]) == 11


def test_enough_operations_are_taken_as_given(probe: Path) -> None:
    found = int(ask(probe, "run", "--workload", "null", "--calibrate").stdout)
    line = measure(probe, "null", "--operations", str(found))
    assert line["operations"] == found
    assert line["calibrated"] is False
    assert line["resolution_ratio"] < 0.001
    assert "warning" not in line


def test_numbers_have_three_decimals_at_most(probe: Path) -> None:
    text = ask(probe, "run", "--workload", "stat").stdout
    numbers = text.partition('"op_ns":[')[2].partition("]")[0].split(",")
    assert len(numbers) == 11
    assert all(len(number.partition(".")[2]) <= 3 for number in numbers)


def test_what_the_workload_says_of_itself(probe: Path, tmp_path: Path) -> None:
    mapped = measure(probe, "mmap_fault", "--operations", "3", "--batches", "1")
    assert mapped["mapped_bytes"] == 1 << 20
    path = measure(probe, "stat", "--batches", "1", "--directory", str(tmp_path))
    assert path["path_components"] == len(tmp_path.resolve().parts) - 1 + 2


def test_a_directory_that_cannot_be_used_is_named(probe: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = ask(probe, "run", "--workload", "stat", "--directory", str(missing), code=2)
    assert f"--directory {missing}: ENOENT" in done.stderr
    assert done.stdout == ""
    unwritable = ask(probe, "run", "--workload", "stat", "--directory", "/proc", code=1)
    assert "mkdir /proc/excise-probe-" in unwritable.stderr
    assert unwritable.stdout == ""


def test_a_filter_that_is_too_large_is_refused(probe: Path) -> None:
    most = json.loads(ask(probe, "info").stdout)["seccomp_max_rules"]
    assert measure(probe, "null", "--batches", "1", "--seccomp", str(most))
    done = ask(probe, "run", "--workload", "null", "--seccomp", str(most + 1), code=2)
    assert f"at most {most} rules" in done.stderr
    assert done.stdout == ""


def test_landlock_on_everything_cannot_be_proved(probe: Path) -> None:
    done = ask(probe, "run", "--workload", "null", "--landlock", "--directory", "/", code=2)
    assert "nothing is left outside" in done.stderr


def test_further_landlock_rules_are_taken_and_proved(probe: Path, tmp_path: Path) -> None:
    if not abi(probe):
        skip("this kernel has no Landlock")
    (tmp_path / "work").mkdir()
    folders = [tmp_path / f"folder {number}" for number in range(300)]
    for folder in folders:
        folder.mkdir()
    rules = tmp_path / "rules"
    rules.write_text("".join(f"rx {folder}\n" for folder in folders) + "\nw /dev/null\n")
    words = ("--directory", str(tmp_path / "work"), "--landlock-rules", str(rules))
    line = measure(probe, "open_close", "--batches", "1", *words)
    assert line["mechanism"] == {
        "no_new_privs": True,
        "landlock_abi": abi(probe),
        "landlock_denies_outside": True,
        "landlock_rules": 301,
        "landlock_allows_by_rule": True,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no rule"),
        ("r /usr\nx usr\n", "line 2: expected rights and an absolute path, as in `rx /usr`"),
        ("a /usr\n", "line 1: expected rights"),
    ],
)
def test_a_file_without_landlock_rules_is_wrong_usage(
    probe: Path, tmp_path: Path, text: str, said: str
) -> None:
    rules = tmp_path / "rules"
    rules.write_text(text)
    words = ("--directory", str(tmp_path), "--landlock-rules", str(rules))
    done = ask(probe, "run", "--workload", "null", *words, code=2)
    assert f"--landlock-rules {rules}: {said}" in done.stderr
    rules.unlink()
    done = ask(probe, "run", "--workload", "null", *words, code=2)
    assert "No such file or directory" in done.stderr


def test_a_kernel_without_landlock_is_exit_code_four(probe: Path, tmp_path: Path) -> None:
    """Take Landlock away by a filter that answers as a kernel without it does."""
    source = tmp_path / "without.c"
    source.write_text(WITHOUT_LANDLOCK)
    subprocess.run(["gcc", "-static", "-o", tmp_path / "without", source], check=True)
    words = [tmp_path / "without", probe, "run", "--workload", "stat", "--landlock"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "this kernel has no Landlock" in done.stderr
    assert done.stdout == ""
    info = subprocess.run(
        [tmp_path / "without", probe, "info"], capture_output=True, text=True, check=True
    )
    assert json.loads(info.stdout)["landlock_abi"] == 0


WITHOUT_LANDLOCK = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_landlock_create_ruleset, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) return 99;
    execv(argv[1], argv + 1);
    return 98;
}
"""


def test_filters_of_a_surrounding_sandbox_are_counted_too(probe: Path) -> None:
    words = [probe, "exec", "--seccomp", "3", "--", probe, "run", "--workload", "null"]
    done = subprocess.run([*words, "--seccomp", "5"], capture_output=True, text=True, check=True)
    mechanism = json.loads(done.stdout)["mechanism"]
    assert (mechanism["seccomp_rules"], mechanism["seccomp_filters"]) == (5, 2)


def test_a_folder_left_by_a_killed_run_is_no_obstacle(probe: Path, tmp_path: Path) -> None:
    script = 'mkdir "$1/excise-probe-$$"; exec "$0" run --workload stat --directory "$1"'
    done = subprocess.run(
        ["/bin/sh", "-c", script, probe, tmp_path], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["workload"] == "stat"
    assert len(list(tmp_path.iterdir())) == 1
