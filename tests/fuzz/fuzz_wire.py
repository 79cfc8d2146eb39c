"""Fuzzing of frames, headers, messages and batches with atheris (coverage-guided).

    python tests/fuzz/fuzz_wire.py [libFuzzer options, -max_total_time=600 for ten minutes]

Anything but the errors of quorumd.wire.errors is a finding, and so are two readers that disagree.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import atheris

with atheris.instrument_imports(include=["quorumd.wire"]):
    from quorumd.wire import fast
    from quorumd.wire.codec import codec_for, decode, encode
    from quorumd.wire.control_records import decode_control_batch
    from quorumd.wire.errors import CorruptBatch, LimitExceeded, MalformedMessage, RefusedBatch
    from quorumd.wire.framing import FrameBuffer
    from quorumd.wire.headers import decode_request_header, decode_response_header
    from quorumd.wire.messages.fetch import FetchRequest, FetchResponse
    from quorumd.wire.messages.produce import ProduceRequest
    from quorumd.wire.primitives import Source
    from quorumd.wire.records import check_produced, iter_records, read_header, scan
    from quorumd.wire.registry import APIS

BODIES = [
    (cls, version)
    for spec in APIS.values()
    for version in range(spec.min_version, spec.max_version + 1)
    for cls in (spec.request, spec.response)
]
FAST = (
    (fast.parse_produce, ProduceRequest),
    (fast.parse_fetch_request, FetchRequest),
    (fast.parse_fetch_response, FetchResponse),
)


def one_input(data: bytes) -> None:
    """The first byte or two choose what the rest is taken for."""
    if len(data) < 2:
        return
    choice, which, rest = data[0] % 4, data[1], data[2:]
    (frames, message, batch, fast_paths)[choice](which, rest)


def frames(_: int, data: bytes) -> None:
    buffer = FrameBuffer(max_frame_bytes=1000)
    buffer.feed(data)
    try:
        for frame in buffer.frames():
            decode_response_header(52, 2, frame)
            decode_request_header(frame)
    except MalformedMessage:
        return


def message(which: int, data: bytes) -> None:
    cls, version = BODIES[which % len(BODIES)]
    try:
        compiled = decode(cls, version, data)
    except LimitExceeded:
        return  # the plain reader has no limits
    except MalformedMessage:
        compiled = None
    try:
        plain = codec_for(cls, version).construct._parse(Source(data), None, "")
    except Exception:
        plain = None
    assert compiled == plain
    if compiled is not None:
        try:
            again = encode(compiled, version)
        except MalformedMessage:
            return  # a replaced character may make a string too long to be written
        assert decode(cls, version, again) == compiled


def batch(which: int, data: bytes) -> None:
    for read in (scan, lambda raw: list(iter_records(raw)), decode_control_batch):
        try:
            read(data)
        except CorruptBatch:
            continue
    try:
        _, steps = check_produced(
            data, produce_version=which, max_batch_bytes=10_000, now_ms=1_700_000_000_000
        )
        for _ in steps:
            pass
    except RefusedBatch:
        return
    header = read_header(data)
    if not header.codec:
        offsets = [record.offset for record in iter_records(data)]
        assert offsets == list(range(header.record_count))


def fast_paths(which: int, data: bytes) -> None:
    for parse, cls in FAST:
        version = which % 20
        if cls.wire_spec.versions.first <= version <= cls.wire_spec.versions.last:
            found = parse(version, data)
            if found is not None:
                decode(cls, version, data)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
