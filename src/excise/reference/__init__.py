"""Published figures as data: each data set has its source and is a dataset like any capture."""

from __future__ import annotations

from excise.reference.library import PREFIX, load, names
from excise.reference.published import Published, published

__all__ = ["PREFIX", "Published", "load", "names", "published"]
