"""Instructions by symbol and object, from callgrind's format and from callgrind itself."""

from __future__ import annotations

import pytest

from excise.collect.selftest.callgrind import present, profile_start, read_callgrind
from excise.collect.selftest.libraries import LIBRARIES, look_for
from excise.errors import FormatError
from skips import skip

pytest_plugins = ("selftest_programs",)
PROFILE = """# callgrind format
version: 1
creator: by hand
positions: line
events: Ir
summary: 150

ob=(1) /lib/libx.so
fl=(1) ???
fn=(1) run_selftests
10 40
+3 10
cob=(2) /lib/libc.so.6
cfi=(2) string.c
cfn=(2) memcpy
calls=2 5
* 70

ob=(2)
fl=(2)
fn=(2)
5 70

ob=(1)
fn=(3) main
1 30
cfn=(1)
calls=1 10
1 120
totals: 150
"""


def test_own_and_inclusive_instructions_are_told_apart() -> None:
    found = {each.name: each for each in read_callgrind(PROFILE)}
    assert (found["run_selftests"].own, found["run_selftests"].inclusive) == (50, 120)
    assert (found["main"].own, found["main"].inclusive) == (30, 150)
    assert found["memcpy"].object == "/lib/libc.so.6"
    assert sum(each.own for each in found.values()) == 150


def test_a_profile_that_lost_a_line_is_refused() -> None:
    with pytest.raises(FormatError, match="sum to 140, its summary says 150"):
        list(read_callgrind(PROFILE.replace("+3 10\n", "")))


def test_a_line_that_is_no_line_of_the_format_is_named() -> None:
    with pytest.raises(FormatError, match="line 9"):
        list(read_callgrind(PROFILE.replace("fl=(1) ???", "fl (1)")))


def test_callgrind_shows_what_a_forced_library_executes_more() -> None:
    if not present() or look_for(LIBRARIES[0]).state != "measured":
        skip("no valgrind, or no libgcrypt with a FIPS mode")
    off = profile_start(LIBRARIES[0], forced=False)
    on = profile_start(LIBRARIES[0], forced=True)
    assert sum(off.objects.values()) == off.total
    (name,) = (each for each in on.objects if each.startswith("libgcrypt"))
    assert on.objects[name] > 1000 * off.objects[name]
    assert next(iter(on.objects)) == name
