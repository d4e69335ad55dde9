"""Evidence about a machine's state, and its appraisal (terms of RFC 9334).

A module here reads evidence that is not to be trusted and answers with checks; nothing that was
only parsed is called verified.
"""
