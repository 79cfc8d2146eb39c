"""UpdateFeatures, of `kafka-features upgrade`. There is one feature, kraft.version, and operators need not
raise it: the first leader writes its newest level as soon as every voter has shown its storage id.
Source: KIP-584, KIP-778, KIP-853; Apache Kafka 4.3, FeatureControlManager (errors and their order).
"""

from __future__ import annotations

from typing import Final

from quorumd.server.model.kafka_drift import KRAFT_VERSION
from quorumd.server.model.partition_view import PartitionView
from quorumd.wire.control_records import KRAFT_VERSION_MAX
from quorumd.wire.error_codes import ErrorCode
from quorumd.wire.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdate,
    UpdateFeaturesResponse,
    UpdateFeaturesResponseResult,
)

ERROR_OF_ALL_SINCE: Final = 2
"""From here on one error stands for all updates."""


def update_features(
    view: PartitionView, request: UpdateFeaturesRequest, version: int
) -> UpdateFeaturesResponse:
    """No error for the level that is there; INVALID_UPDATE_VERSION for every other."""
    found = [
        (update.feature, _refusal(update, view.kraft_version)) for update in request.feature_updates
    ]
    if version < ERROR_OF_ALL_SINCE:
        return UpdateFeaturesResponse(
            error_message=None,
            results=tuple(
                UpdateFeaturesResponseResult(
                    feature=name, error_code=_code(refusal), error_message=refusal
                )
                for name, refusal in found
            ),
        )
    refusal = next((text for _, text in found if text is not None), None)
    return UpdateFeaturesResponse(error_code=_code(refusal), error_message=refusal)


def _code(refusal: str | None) -> int:
    return int(ErrorCode.NONE if refusal is None else ErrorCode.INVALID_UPDATE_VERSION)


def _refusal(update: UpdateFeaturesRequestFeatureUpdate, level: int) -> str | None:
    """The reason why the feature does not get this level; None if it has it."""
    wanted, name = update.max_version_level, update.feature
    if name != KRAFT_VERSION:
        return f"there is no feature {name} here: the only one is {KRAFT_VERSION}"
    if not 0 <= wanted <= KRAFT_VERSION_MAX:
        return f"{KRAFT_VERSION} {wanted} is not known here: 0 to {KRAFT_VERSION_MAX} are"
    if wanted < level:
        return f"{KRAFT_VERSION} is {level} for good: the log names the voters, and stays so"
    if wanted > level:
        return (
            f"{KRAFT_VERSION} becomes {KRAFT_VERSION_MAX} by itself, once every voter has been started:"
            " look at `quorumctl describe`"
        )
    return None
