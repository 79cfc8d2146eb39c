"""A browser for the tests of the page; without one they are skipped, and say how to install it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, Tab, missing_chromium, running_browser


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if reason := missing_chromium():
        pytest.skip(reason)
    with running_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    """A desktop's window in which nothing is shown yet."""
    tab = browser.open()
    tab.show(width=1180)
    yield tab
    tab.close()
