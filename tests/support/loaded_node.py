"""What a node loads, and compiles after its start while nobody asks: done once, by importing this, in the
process that forks nodes. All codecs take half a second of a processor, in each node that lives for long."""

from __future__ import annotations

import encodings.idna
import encodings.utf_8_sig
import importlib.readers

from quorumd.server import main, node_tls, run
from quorumd.server.page import page, source
from quorumd.wire.codec import codec_for
from quorumd.wire.control_records import KRaftVersion, KRaftVoters, LeaderChange
from quorumd.wire.registry import warm_all

LOADED = (main, node_tls, page, run, source)
LOADED_WHEN_USED = (encodings.idna, encodings.utf_8_sig, importlib.readers)

for _ in warm_all():
    pass
for record in (KRaftVersion, KRaftVoters, LeaderChange):
    codec_for(record, 0)
