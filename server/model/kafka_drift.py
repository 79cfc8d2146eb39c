"""Features that a Kafka quorum asks of its voters and this version cannot promise.

Kafka's quorum may be newer than this node. A node that does not vote yet then keeps from becoming a voter: it
announces no feature, so that Kafka's leader refuses to add it (KIP-853).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from quorumd.server.model.logs import Logger
from quorumd.server.model.metrics import Metrics
from quorumd.wire.control_records import KRAFT_VERSION_MAX
from quorumd.wire.messages.api_versions import ApiVersionsResponse
from quorumd.wire.registry import APIS

LOG: Final = Logger("kafka")

KRAFT_VERSION: Final = "kraft.version"
METADATA_VERSION: Final = "metadata.version"
"""The feature that each node of Kafka has, and none of a quorumd quorum."""
KAFKA_FEATURES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "eligible.leader.replicas.version": (0, 1),
        "group.version": (0, 1),
        KRAFT_VERSION: (0, KRAFT_VERSION_MAX),
        METADATA_VERSION: (7, 33),
        "share.version": (0, 2),
        "streams.version": (0, 1),
        "transaction.version": (0, 2),
    }
)
"""Lowest and highest level, those of Kafka 4.4: what one controller lacks the others cannot raise."""
VOTERS_KEYS: Final = (1, 52, 53, 54, 59, 82)
"""Api keys of requests between voters."""


class KafkaDrift:
    """Of one node. Of a feature and of a node's versions the last word counts; unknown records stay."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._levels: dict[str, str] = {}
        self._apis: dict[str, list[str]] = {}
        self._records: list[str] = []
        self._logged: set[str] = set()

    @property
    def obstacles(self) -> list[str]:
        """Reasons why this node must not become a voter, in words; empty if it may."""
        apis = [text for texts in self._apis.values() for text in texts]
        return [*self._levels.values(), *apis, *self._records]

    def note_records(self, unknown: Iterable[str], levels: Iterable[tuple[str, int]]) -> None:
        """Notes names of records that are not known, and levels of features that the log finalizes."""
        for what in unknown:
            if self._metrics.count_unknown(what):
                LOG.warning("the Kafka quorum writes what this version does not know", what=what)
                self._records.append(
                    f"the log has a {what}, which this version does not know: upgrade quorumd"
                )
        for feature, level in levels:
            self._note_level(feature, level)
        self._log_news()

    def _note_level(self, feature: str, level: int) -> None:
        """The quorum has finalized this level of a feature; 0: it is off."""
        lowest, highest = KAFKA_FEATURES.get(feature, (0, 0))
        if level and not lowest <= level <= highest:
            known = f"knows {lowest} to {highest}" if highest else "does not know that feature"
            self._levels[feature] = (
                f"the quorum has {feature} {level}, and this version {known}: upgrade quorumd"
            )
        else:
            self._levels.pop(feature, None)

    def note_announced(self, peer: str, announced: ApiVersionsResponse) -> None:
        """A node of the quorum says which versions of APIs it serves, and which levels are finalized."""
        served = {each.api_key: (each.min_version, each.max_version) for each in announced.api_keys}
        texts = []
        for key in VOTERS_KEYS:
            lowest, highest = served.get(key, (0, APIS[key].max_version))
            known = APIS[key]
            if lowest > known.max_version or highest < known.min_version:
                texts.append(
                    f"{peer} serves {known.name} {lowest} to {highest}, and this version knows "
                    f"{known.min_version} to {known.max_version}: upgrade quorumd"
                )
        self._apis[peer] = texts
        for feature in announced.finalized_features:
            self._note_level(feature.name, feature.max_version_level)
        self._log_news()

    def _log_news(self) -> None:
        for text in self.obstacles:
            if text not in self._logged:
                self._logged.add(text)
                LOG.warning(
                    "this version cannot promise what a voter of the quorum has to", reason=text
                )
