"""The same experiments between real machines, on Flower (docs/deploy.md).

protocol                            what is said; every request and answer
server/                             the server's side: which nodes are clients, and the backend that asks them (`nodes`)
client/                             the client's side: what it allows, remembers and answers (`living_client`)
flower/                             Flower: its SuperLink behind a gate, and a client's node
certificates                        keys of both sides
client_app server_app compress      for apps of your own: both sides under Flower's own programs; the one-bit uploads alone
"""

from pathlib import Path

APP = Path(__file__).parent / "flower" / "app"  # Flower's name for a folder that says which ServerApp and ClientApp a run is of
