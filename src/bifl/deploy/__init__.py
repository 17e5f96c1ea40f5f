"""The same experiments between real machines, on Flower (docs/deploy.md).

`protocol` is what is said, `server` and `client` are the two sides, `flower` is what they need of Flower, `certificates` are their
keys. For apps of your own: `client_app` and `server_app` under Flower's own programs, `compress` for the one-bit uploads alone.
"""

from pathlib import Path

APP = Path(__file__).parent / "flower" / "app"  # Flower's name for a folder that says which ServerApp and ClientApp a run is of
