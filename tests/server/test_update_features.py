"""UpdateFeatures: the level that is there is no error, every other is refused with the reason."""

from __future__ import annotations

import pytest

from quorumd.server.requests.update_features import update_features
from quorumd.wire.codec import decode, encode
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdate,
    UpdateFeaturesResponse,
)
from tests.support.cluster import FixedView

VERSIONS = range(3)
REFUSED = ErrorCode.INVALID_UPDATE_VERSION


def answered(
    version: int, *updates: tuple[str, int], kraft_version: int = 1
) -> UpdateFeaturesResponse:
    request = UpdateFeaturesRequest(
        feature_updates=tuple(
            UpdateFeaturesRequestFeatureUpdate(feature=name, max_version_level=level)
            for name, level in updates
        )
    )
    answer = update_features(FixedView(kraft_version=kraft_version), request, version)
    return decode(UpdateFeaturesResponse, version, encode(answer, version))


def errors(version: int, answer: UpdateFeaturesResponse) -> list[tuple[int, str | None]]:
    """Code and text of each update, or of all."""
    if version >= 2:
        return [(answer.error_code, answer.error_message)]
    assert (answer.error_code, answer.error_message) == (0, None)
    return [(row.error_code, row.error_message) for row in answer.results]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", [0, 1])
def test_the_level_that_is_there_is_no_error(version: int, level: int) -> None:
    answer = answered(version, ("kraft.version", level), kraft_version=level)
    assert errors(version, answer) == [(0, None)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("update", "kraft_version", "reason"),
    [
        (("metadata.version", 30), 1, "there is no feature metadata.version here"),
        (("kraft.version", 0), 1, "kraft.version is 1 for good"),
        (("kraft.version", 1), 0, "kraft.version becomes 1 by itself"),
        (("kraft.version", 2), 1, "kraft.version 2 is not known here"),
        (("kraft.version", -1), 1, "kraft.version -1 is not known here"),
    ],
)
def test_every_other_level_is_refused_with_the_reason(
    version: int, update: tuple[str, int], kraft_version: int, reason: str
) -> None:
    ((code, text),) = errors(version, answered(version, update, kraft_version=kraft_version))
    assert code == REFUSED
    assert text is not None
    assert text.startswith(reason)


@pytest.mark.parametrize("version", VERSIONS)
def test_one_refused_update_of_several_is_named(version: int) -> None:
    answer = answered(version, ("kraft.version", 1), ("group.version", 1))
    expected = [REFUSED] if version >= 2 else [ErrorCode.NONE, REFUSED]
    assert [code for code, _ in errors(version, answer)] == expected
