"""Finished runs as one HTML file that needs nothing else: collect → summary → figures → page."""
