"""The fixture `write`: a function that writes controller.yaml into the test's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.config_files import Write, writer_into


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return writer_into(tmp_path)
