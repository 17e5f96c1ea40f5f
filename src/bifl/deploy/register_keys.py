"""Register clients' keys with a SuperLink, all in one process: each call of `flwr supernode register` would take two seconds."""

from __future__ import annotations

import sys
from pathlib import Path

from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.typing import SuperLinkConnection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest

from bifl.deploy.certificates import client_number
from bifl.deploy.members import write_numbers


def main() -> None:
    """Arguments: the SuperLink's address, its authority's certificate, where to write the clients' numbers, all public key files.

    Keys that the SuperLink knows are passed over. The file then says which client each node is; nodes with other keys are not in
    it.
    """
    address, authority, numbers, *paths = sys.argv[1:]
    keys = {try_load_public_key(Path(path)): client_number(Path(path)) for path in paths}
    client = init_http_client_from_connection(SuperLinkConnection("bifl", address, authority, insecure=False))
    try:
        known = {node.public_key for node in client.ListNodes(ListNodesRequest()).nodes_info}
        for key in keys.keys() - known:
            client.RegisterNode(RegisterNodeRequest(public_key=key))
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
        bound = {node.node_id: keys[node.public_key] for node in nodes if node.public_key in keys}
        write_numbers(Path(numbers), {node: number for node, number in bound.items() if number is not None})
    finally:
        client.close()
