"""One browser for all tests that look at a page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pagetide_gateway.serving.page import Page

from .browser import Browser, fresh_page, running_chromium


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_chromium(tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with fresh_page(chromium) as page:
        yield page


@pytest.fixture
def quick_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways take a point for the charts every half second."""
    run = Page.run

    async def quick(page: Page) -> None:
        page._interval_s = 0.5
        await run(page)

    monkeypatch.setattr(Page, "run", quick)
