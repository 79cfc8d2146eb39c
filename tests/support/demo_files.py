"""The files of a demo on ports that no other test has: `quorumd demo` by itself takes the first free ones,
and two that start at one moment take the same.
"""

from __future__ import annotations

from pathlib import Path

from quorumd.server.demo.nodes import HOST, NODE_IDS, config_path
from tests.support.ports import free_port


def configure_demo(directory: Path) -> None:
    """Makes the directory and the nodes' files in it, for `quorumd demo` to go on with."""
    directory.mkdir()
    ports = {node_id: free_port() for node_id in NODE_IDS}
    voters = ",".join(f"{node_id}@{HOST}:{port}" for node_id, port in ports.items())
    for node_id, port in ports.items():
        config_path(directory, node_id).write_text(
            f"node.id: {node_id}\n"
            f"storage.dir: node{node_id}\n"
            f"listeners: CONTROLLER://{HOST}:{port}\n"
            f"http.listen: {HOST}:{free_port()}\n"
            f"quorum.voters: {voters}\n"
        )
