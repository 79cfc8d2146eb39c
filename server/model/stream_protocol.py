"""The calls of an event loop to a connection, with defaults for those that a connection does not define."""

from __future__ import annotations


class StreamProtocol:
    """The methods of `asyncio.Protocol` that may do nothing; its other methods are the connection's own.

    Event loops ask for the methods and not for asyncio's class. With that for a base, which is not compiled,
    a compiled connection would look each of its attributes up by name.
    """

    __slots__ = ()

    def eof_received(self) -> None:
        """The peer will send nothing more: the event loop closes the connection."""

    def pause_writing(self) -> None:
        """More waits to be sent than the transport's limit."""

    def resume_writing(self) -> None:
        """Less waits again."""
