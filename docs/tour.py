"""Takes the eight pictures of tour.md from the demo: of a terminal, and of pages (`make pictures`).

    python docs/tour.py

It needs the demo, its sweep and Chromium. Commands are run as they stand in the pictures.
"""

from __future__ import annotations

import html
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLOURS = 48
"""Number of colours of a picture: text needs few, and the file is a third as large."""

TERMINAL = {
    "tour-1-init": ("datamask init runs/demo-corpus -o runs/tour.yaml", 24),
    "tour-2-rebuild": ("datamask rebuild runs/demo", 36),
    "tour-3-status": ("datamask status runs/demo", 46),
    "tour-7-query": (
        'datamask query runs/demo "SELECT dump, count(*) AS documents, count_if(selected) AS kept '
        'FROM documents GROUP BY dump ORDER BY kept DESC"',
        24,
    ),
    "tour-8-compare": ("datamask compare runs/demo runs/demo-sweep/quality_weight-0.9", 40),
}
"""By picture: a command, and how many lines of its output the picture shows at most."""

PAGES = {
    "tour-4-first-screen": ("", 0, 640),
    "tour-5-findings": ("#trust", -8, 520),
    "tour-6-documents": ("#documents", -8, 640),
}
"""By picture: the element of the report at its top, pixels below it, and the picture's height."""

WIDTH = 1000


def main() -> None:
    """Take all pictures."""
    os.chdir(ROOT)
    Path("runs/tour.yaml").unlink(missing_ok=True)  # `init` does not overwrite a file.
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (command, lines) in TERMINAL.items():
            _terminal(browser, name, command, lines)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, offline=True)
        page.goto((ROOT / "runs/demo/report.html").as_uri())
        page.locator("[data-filter=read]").select_option(label="near-copy pairs")
        page.locator(".findings summary").nth(1).click()
        for name, (element, above, height) in PAGES.items():
            box = page.locator(element).bounding_box() if element else None
            top = box["y"] if box else 0.0
            clip: Any = {"x": 0, "y": top + above, "width": WIDTH, "height": height}
            _write(name, page.screenshot(full_page=True, clip=clip))
        browser.close()


def _terminal(browser: Browser, name: str, command: str, most: int) -> None:
    """Run a command as the picture shows it, and photograph what it prints."""
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    variables = {**os.environ, "PATH": os.pathsep.join(paths), "COLUMNS": "110"}
    done = subprocess.run(
        command,
        shell=True,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    # Paths in the pictures are relative to the repository.
    lines = done.stdout.replace(f"{ROOT}/", "").rstrip().splitlines()
    if len(lines) > most:
        lines = [*lines[: most - 1], "…"]
    page = browser.new_page(viewport={"width": WIDTH, "height": 200}, offline=True)
    text = html.escape("\n".join(lines))
    page.set_content(
        "<style>body { margin: 0 } pre { margin: 0; padding: 14px 18px; font: 14px/1.45 'DejaVu "
        "Sans Mono', monospace; background: #10141a; color: #e6edf3; white-space: pre-wrap; "
        "overflow-wrap: anywhere } b { color: #79c0ff; font-weight: normal }</style>"
        f"<pre><b>$ {html.escape(command)}</b>\n{text}</pre>"
    )
    _write(name, page.locator("pre").screenshot())
    page.close()


def _write(name: str, picture: Any) -> None:
    """Write a picture with few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    few = image.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
