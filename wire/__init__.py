"""Bytes to typed messages and back: Kafka's wire protocol and its record batches.

Knows no socket, no disk and no rule of consensus. Importing it compiles nothing: a codec is derived
from its declaration when it is first needed.
"""
