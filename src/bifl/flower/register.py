"""Register clients' keys with a SuperLink, all in one process: each call of `flwr supernode register` would take two seconds."""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.typing import SuperLinkConnection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest


def main() -> None:
    """Arguments: the SuperLink's address, its authority's certificate, public key files. Keys that it knows are passed over."""
    address, authority, *paths = sys.argv[1:]
    client = init_http_client_from_connection(SuperLinkConnection("bifl", address, authority, insecure=False))
    try:
        known = {node.public_key for node in client.ListNodes(ListNodesRequest()).nodes_info}
        for path in paths:
            key = try_load_public_key(Path(path))
            if key not in known:
                client.RegisterNode(RegisterNodeRequest(public_key=key))
    finally:
        client.close()
