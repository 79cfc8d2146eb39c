"""From a configuration to a running node and its exit code."""

from __future__ import annotations

import gc
import os
import resource
import sys

import uvloop

from quorumd.config.model import Config
from quorumd.server.model.logs import BackgroundHandler, LevelError, Logger, configure
from quorumd.server.net.connection_slots import NEW_MAX
from quorumd.server.net.listeners import ListenError
from quorumd.server.node import Node
from quorumd.storage.directory import open_directory
from quorumd.storage.errors import StorageError
from quorumd.storage.filesystem import RealFileSystem

LOG = Logger("node")

OTHER_FILES = 512
"""Of the log, of peers, of the page."""
GC_THRESHOLD = 20_000
"""Objects made and not freed again before the garbage collector searches for cycles."""


def run_node(config: Config) -> int:
    """Run a node until it is stopped. Returns the exit code of the process."""
    try:
        logs = configure(sys.stderr)
    except LevelError as error:
        print(f"quorumd: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(config, logs))
    except StorageError as error:
        LOG.error("cannot use the storage directory", error=str(error))
        return error.exit_code
    except ListenError as error:
        LOG.error(str(error))
        return 1
    finally:
        logs.close()
    return 0


def _raise_file_limit(max_connections: int) -> None:
    """Each connection is an open file; most systems permit a process more than it begins with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = max_connections + NEW_MAX + OTHER_FILES
    if hard not in (resource.RLIM_INFINITY, -1) and hard < wanted:
        LOG.warning(
            "fewer files may be open than max.connections can take: raise the limit (ulimit -Hn, "
            "LimitNOFILE), or lower max.connections",
            limit=hard,
            wanted=wanted,
        )


async def _serve(config: Config, logs: BackgroundHandler) -> None:
    def exit_at_once(code: int) -> None:
        """Nothing may run any more: neither handlers nor destructors could make it better."""
        logs.flush_within(1.0)
        os._exit(code)

    # Objects made so far live as long as the process; others are freed by reference counts, so that a
    # search for cycles is rarely worth a pause.
    _raise_file_limit(config.max_connections)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    fs = RealFileSystem()
    directory = open_directory(fs, config.storage_dir, node_id=config.node_id)
    await Node(config, fs, directory, exit_at_once).run()
