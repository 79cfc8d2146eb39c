"""The clients for Python that the tests know, by name."""

from __future__ import annotations

from tests.clients.aiokafka_client import Aiokafka
from tests.clients.interface import Client
from tests.clients.kafka_python import KafkaPython
from tests.clients.librdkafka import Librdkafka

CLIENTS: dict[str, Client] = {
    "kafka-python": KafkaPython(),
    "aiokafka": Aiokafka(),
    "librdkafka": Librdkafka(),
}
