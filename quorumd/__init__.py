"""A client of a quorum, as a library.

    import asyncio, quorumd

    async def main() -> None:
        async with quorumd.QuorumClient("localhost:9093") as client:
            await client.append([quorumd.Record(key=b"color", value=b"blue")])
            async with quorumd.KeyValueView(client) as view:
                print(view.get(b"color"))

    asyncio.run(main())

`QuorumAdmin` changes the voters and the leader. The names are those of `quorumd.client`, which is imported
when the first of them is used: importing quorumd itself starts, opens and loads next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from quorumd.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from quorumd.client import *  # noqa: F403 (its __all__ is the list of public names)
    from quorumd.client import __all__ as __all__
else:

    def __getattr__(name):
        if name == "__all__" or not name.startswith("_"):
            client = import_module("quorumd.client")
            if name == "__all__" or name in client.__all__:
                value = globals()[name] = getattr(client, name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return ["__version__", *import_module("quorumd.client").__all__]
