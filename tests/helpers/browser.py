"""A browser for tests of the studio: a Chromium that is found on this machine, driven by Playwright.

Tests are skipped, with the reason, if there is none. MNEMO_REQUIRE_BROWSER=1, which .ci/run sets, makes them fail.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, ViewportSize, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
MISSING = (
    "there is no Chromium for the studio's browser tests: install one (Debian: apt-get install chromium; "
    "elsewhere: .venv/bin/playwright install chromium)"
)
AXE = Path(__file__).parent / "axe" / "axe.min.js"
LONGEST_WAIT = 60_000
"""Milliseconds; tests wait no longer than needed, and machines can be busy."""
PHONE: ViewportSize = {"width": 360, "height": 740}
DESKTOP: ViewportSize = {"width": 1280, "height": 860}


def find_chromium(playwrights_own: str = "") -> str | None:
    """The path of a Chromium; that of Playwright's own download if it is there."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    found += [path for path in (*PLACES, playwrights_own) if path and Path(path).is_file()]
    return found[0] if found else None


@contextmanager
def launched() -> Iterator[Browser]:
    """A running browser. It must be closed before other tests run: Playwright keeps an event loop running."""
    with sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path) or missing()
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


def missing() -> NoReturn:
    if os.environ.get("MNEMO_REQUIRE_BROWSER") == "1":
        pytest.fail(MISSING)
    pytest.skip(MISSING)


class Watched:
    """A page whose console errors and failed requests are collected."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.url, self.problems = url, []
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        self.page.locator("h1").wait_for()
        return self.page

    def check(self) -> None:
        assert not self.problems, self.problems


@contextmanager
def watched(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """A page in a context without cookies and storage; an error if its console had one."""
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    context.set_default_timeout(LONGEST_WAIT)
    expect.set_options(timeout=LONGEST_WAIT)
    try:
        page = Watched(context, url)
        yield page
        page.check()
    finally:
        context.close()


def violations(page: Page) -> list[str]:
    """Problems for keyboards, screen readers and weak eyes that axe finds in a page, a line each."""
    page.evaluate(AXE.read_text(encoding="utf-8") + ";undefined")
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [
        f"{each['id']}: {each['help']}: " + "; ".join(node["html"][:200] for node in each["nodes"][:3])
        for each in found
    ]


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def save_picture(page: Page, path: Path, height: int) -> None:
    """Save the top of a page as a picture."""
    width = page.evaluate("window.innerWidth")
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    _reduce(path)


def save_part(part: Locator, path: Path) -> None:
    """Save one part of a page as a picture; at the top of the page, where the header covers nothing of it."""
    part.page.evaluate("scrollTo(0, 0)")
    part.page.screenshot(path=path, full_page=True, clip=part.bounding_box())  # type: ignore[arg-type]
    _reduce(path)


def _reduce(path: Path) -> None:
    """Reduce a picture to few colours: a third of the size."""
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(192).save(path, optimize=True)


if __name__ == "__main__":
    with sync_playwright() as started:
        found = find_chromium(started.chromium.executable_path)
    print(found or MISSING)
    sys.exit(found is None)
