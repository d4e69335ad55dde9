"""Captures: what was measured, on which machine, in the order it happened.

A capture is a folder (or a `.tar.zst` of it) with `manifest.json`, `journal.jsonl`, `raw/` and,
when sealed, `seal.json`. The journal is append-only while the capture is open and write-once when
it is sealed; everything else that excise prints is derived from it and can be recomputed.
"""
