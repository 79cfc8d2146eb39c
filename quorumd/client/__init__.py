"""The client of a quorum: append, read and describe its log over the network.

Knows the wire protocol and the leader; knows no disk, no configuration file and no daemon. What is listed
in `quorumd.client.names` is the public library. These names are those of this package too, and of
`quorumd`: they are imported when the first of them is used, not by who needs a module of the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorumd.client.names import *  # noqa: F403 (its __all__ is the list of public names)
    from quorumd.client.names import __all__ as __all__
else:

    def __getattr__(name):
        if name == "__all__" or not name.startswith("_"):
            names = import_module("quorumd.client.names")
            if name == "__all__" or name in names.__all__:
                value = globals()[name] = getattr(names, name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return [*globals(), *import_module("quorumd.client.names").__all__]
