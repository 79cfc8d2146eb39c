"""Syntax trees are kept for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.architecture.source_tree import tree_of


@pytest.fixture(autouse=True, scope="module")
def _trees() -> Iterator[None]:
    yield
    tree_of.cache_clear()
