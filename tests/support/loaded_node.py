"""What a node loads, and compiles after its start while nobody asks: done once, by importing this, in the
process that forks nodes. All codecs take half a second of a processor, in each node that lives for long."""

from __future__ import annotations

from quorumd.server import main, node_tls, run
from quorumd.server.page import page, source
from quorumd.wire import codec, registry
from quorumd.wire.control_records import KRaftVersion, KRaftVoters, LeaderChange

LOADED = (main, node_tls, page, run, source)

registry.warm(registry.APIS, every_version=True)
codec.warm([(KRaftVersion, 0), (KRaftVoters, 0), (LeaderChange, 0), (LeaderChange, 1)])
