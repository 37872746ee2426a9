"""Screenshots of pages, wide and narrow, light and dark, for people to look at.

Run it as `python -m tests.report.screenshots FOLDER PAGE...` (`make screenshots`). A page becomes
FOLDER/NAME-WIDTH-SCHEME-PART.png; a part is at most 2,400 px high.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

WIDTHS = (1200, 390)
PART = 2400


def photograph(browser: Browser, path: Path, folder: Path) -> None:
    """Write the screenshots of a page."""
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
            )
            page.goto(path.absolute().as_uri())
            height = page.evaluate("document.documentElement.scrollHeight")
            for part, top in enumerate(range(0, height, PART), 1):
                page.screenshot(
                    path=folder / f"{path.stem}-{width}-{scheme}-{part}.png",
                    full_page=True,
                    clip={"x": 0, "y": top, "width": width, "height": min(PART, height - top)},
                )
            page.close()


def main() -> None:
    """Photograph the pages named on the command line."""
    folder, *pages = map(Path, sys.argv[1:])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for path in pages:
            photograph(browser, path, folder)
            size = path.stat().st_size / 1e6
            print(f"{path}: {size:.2f} MB, pictures in {folder}/{path.stem}-*.png")
        browser.close()


if __name__ == "__main__":
    main()
