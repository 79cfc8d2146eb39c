"""Syntax trees are kept for the tests of one file."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.architecture.source_tree import tree_of


@pytest.fixture(autouse=True, scope="module")
def _trees() -> Iterator[None]:
    """No tree holds itself: the garbage collector would go through millions of nodes for nothing."""
    gc.disable()
    try:
        yield
    finally:
        tree_of.cache_clear()
        gc.enable()
