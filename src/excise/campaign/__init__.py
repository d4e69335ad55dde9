"""Campaigns: what to run, in which order, on which target; resumable at any moment."""
