"""Waiting for a thread's work so that Ctrl-C is heard."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final, TypeVar

_POLL_S: Final = 0.1
_T = TypeVar("_T")


def result_of(future: Future[_T]) -> _T:
    """Return a future's result; an interrupt strikes between two looks.

    Polars handles SIGINT with SA_RESTART from its import on: a wait without an end then goes on
    behind the signal (signal(7)), and Python hears of it when the work is done.
    """
    first_of({future})
    return future.result()


def first_of(futures: Collection[Future[Any]]) -> set[Future[Any]]:
    """Return the futures that are done, once there is one, as `result_of` waits."""
    while True:
        done, _ = wait(futures, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        if done:
            return done
