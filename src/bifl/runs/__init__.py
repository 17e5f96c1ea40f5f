"""Runs on disk: folders, records, kept runs, comparisons, trackers. Nothing here trains."""
