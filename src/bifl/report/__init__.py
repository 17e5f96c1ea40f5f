"""Finished runs as one HTML file that needs nothing else: summary groups them, charts draws them, page writes it."""
