"""Records of compressed batches that claim other offsets than their places: all readers see the places."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quorumd.wire.compression import CompressionType, pack
from quorumd.wire.keyed_records import PREFIX, take_records
from quorumd.wire.records import iter_places, iter_records, read_header
from tests.support.claimed_offsets import payload_claiming, with_payload

CODECS = [codec for codec in CompressionType if codec]
CLAIMS = [(0, 5, 1), (0, 100_000, 1), (-3, 0, 0), (2, 1, 0), (0, 0, 0, 0, 0, 0), (-(2**31),)]


def claiming(deltas: Sequence[int], codec: int, *, last_delta: int | None = None) -> bytes:
    return with_payload(
        pack(codec, payload_claiming(deltas)),
        len(deltas),
        codec=codec,
        base_offset=70,
        last_delta=last_delta,
    )


def taken(batch: bytes, deltas: Sequence[int], step: int) -> list[int]:
    """The offsets that are held for a snapshot, of records that were read `step` by `step`."""
    header, data = read_header(batch), payload_claiming(deltas)
    held: dict[bytes, bytes] = {}
    at = done = 0
    while done < header.record_count:
        count = min(step, header.record_count - done)
        records, at, _ = take_records(
            header, data, at, len(data), first=done, count=count, record_bytes_max=99, held=held
        )
        assert records == count
        done += records
    return [PREFIX.unpack_from(each)[1] for each in held.values()]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("deltas", CLAIMS)
def test_the_offset_of_a_compressed_record_is_its_place(deltas: Sequence[int], codec: int) -> None:
    batch = claiming(deltas, codec)
    places = [70 + place for place in range(len(deltas))]
    assert [record.offset for record in iter_records(batch)] == places
    assert [record.key for record in iter_records(batch)] == [b"%d" % i for i in range(len(deltas))]
    assert [place.offset for place in iter_places(batch)] == places
    for step in (1, 2, 100):
        assert taken(batch, deltas, step) == places


def test_of_fewer_records_than_offsets_one_that_claims_an_offset_outside_is_moved_inside() -> None:
    deltas = (-1, 10, 2)
    batch = claiming(deltas, CompressionType.GZIP, last_delta=5)
    for found in (
        [record.offset for record in iter_records(batch)],
        [place.offset for place in iter_places(batch)],
        taken(batch, deltas, 2),
    ):
        assert found == [70, 75, 72]


def test_where_nothing_is_compressed_the_claim_was_checked_and_counts() -> None:
    batch = with_payload(payload_claiming((0, 4, 9)), 3, base_offset=70, last_delta=9)
    assert [record.offset for record in iter_records(batch)] == [70, 74, 79]
