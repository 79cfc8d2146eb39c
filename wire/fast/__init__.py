"""Produce and Fetch of one partition by `struct`, for the paths that every record takes.

Each function here agrees with the declared message on everything that it handles (tests/wire prove it
on generated input). A parser returns None for what it doesn't handle: several topics,
unusual tags, damaged bytes. quorumd.wire.codec reads such a request then, which is served alike
(`FastFetch.from_message`).
"""

from quorumd.wire.fast.fetch_request import (
    FastFetch,
    FetchRequestWriter,
    parse_fetch_request,
    replica_id_of,
)
from quorumd.wire.fast.fetch_response import (
    JOIN_BYTES_MAX,
    FastFetchResponse,
    FetchEndpoint,
    FetchResponseWriter,
    parse_fetch_response,
)
from quorumd.wire.fast.produce import (
    ProduceHead,
    ProduceResponseWriter,
    parse_produce,
    parse_produce_size,
)

__all__ = [
    "JOIN_BYTES_MAX",
    "FastFetch",
    "FastFetchResponse",
    "FetchEndpoint",
    "FetchRequestWriter",
    "FetchResponseWriter",
    "ProduceHead",
    "ProduceResponseWriter",
    "parse_fetch_request",
    "parse_fetch_response",
    "parse_produce",
    "parse_produce_size",
    "replica_id_of",
]
