"""From a configuration to a running node and its exit code."""

from __future__ import annotations

import gc
import os
import resource
import sys
from dataclasses import replace

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
CLIENTS_MIN = 16
"""The least that max.connections may be."""
GC_THRESHOLD = 20_000
"""Objects made and not freed again before the garbage collector searches for cycles."""


class TooFewFiles(Exception):
    """The limit of open files does not leave room for clients; the text says what it has to be."""


def run_node(config: Config) -> int:
    """Run a node until it is stopped. Returns the exit code of the process."""
    try:
        logs = configure(sys.stderr)
    except LevelError as error:
        print(f"quorumd: {error}", file=sys.stderr)
        return 2
    try:
        serving = _serve(_fit_to_file_limit(config), logs)
        try:
            uvloop.run(serving)
        finally:
            serving.close()  # A signal may come before it has begun.
    except StorageError as error:
        LOG.error("cannot use the storage directory", error=str(error))
        return error.exit_code
    except TooFewFiles as error:
        LOG.error(str(error))
        return 2
    except ListenError as error:
        LOG.error(str(error))
        return 1
    finally:
        logs.close()
    return 0


def _fit_to_file_limit(config: Config) -> Config:
    """With as many clients as there may be open files: without one no log can be rolled, no module loaded.

    Most systems permit a process more files than it begins with. Raises TooFewFiles.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    reserved = NEW_MAX + OTHER_FILES
    wanted = config.max_connections + reserved
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return config
    fitting = hard - reserved
    if fitting < CLIENTS_MIN:
        raise TooFewFiles(
            f"only {hard} files may be open, which leaves no room for clients: raise the limit (ulimit -Hn, "
            f"LimitNOFILE) to {CLIENTS_MIN + reserved} at least, or to {wanted} for all of max.connections"
        )
    LOG.warning(
        "fewer clients are served than max.connections, as few files may be open: raise the limit (ulimit "
        "-Hn, LimitNOFILE), or lower max.connections",
        clients=fitting,
        limit=hard,
        wanted=wanted,
    )
    return replace(config, max_connections=fitting)


async def _serve(config: Config, logs: BackgroundHandler) -> None:
    def exit_at_once(code: int) -> None:
        """Nothing may run any more: neither handlers nor destructors could make it better."""
        logs.flush_within(1.0)
        os._exit(code)

    # Objects made so far live as long as the process; others are freed by reference counts, so that a
    # search for cycles is rarely worth a pause.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    fs = RealFileSystem()
    directory = open_directory(fs, config.storage_dir, node_id=config.node_id)
    node = Node(config, fs, directory, exit_at_once)
    logs.on_drop = node.metrics.count_dropped_line
    await node.run()
