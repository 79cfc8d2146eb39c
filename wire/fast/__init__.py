"""Produce and Fetch of one partition by `struct`, for the paths that every record takes.

Each function here agrees with the declared message on everything that it handles (tests/wire prove it
on generated input). What a parser doesn't handle - several topics, unusual tags, damaged bytes - it
answers with None; quorumd.wire.codec then has the last word, and what it reads is served alike
(`FastFetch.from_message`).
"""

from quorumd.wire.fast.fetch_request import (
    FastFetch,
    encode_fetch_request,
    parse_fetch_request,
    replica_id_of,
)
from quorumd.wire.fast.fetch_response import (
    FastFetchResponse,
    FetchEndpoint,
    encode_fetch_response,
    parse_fetch_response,
)
from quorumd.wire.fast.produce import FastProduce, encode_produce_response, parse_produce

__all__ = [
    "FastFetch",
    "FastFetchResponse",
    "FastProduce",
    "FetchEndpoint",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_produce_response",
    "parse_fetch_request",
    "parse_fetch_response",
    "parse_produce",
    "replica_id_of",
]
