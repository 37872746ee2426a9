"""Change pages to what holds once a release is on the package index.

    python docs/released.py                                    # in the commit of a release
    python docs/released.py https://github.com/OWNER/NAME TAG  # README.md of the distribution

Pages then install the package from the index in place of a clone. With an address and a tag, links
of README.md become absolute too, because the index shows no other file. The workflow of a release
does that before it builds.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "README.zh.md", "docs/tutorial.md", "deployments/README.md")
NAME = "datamask-pipeline"


def from_index(text: str) -> str:
    """The text without its sentences between `<!-- clone -->` marks, and `pip install NAME`."""
    text = re.sub(r"<!-- clone -->\n.*?<!-- /clone -->\n", "", text, flags=re.DOTALL)
    text = re.sub(r"pip install \.(?=\s)", f"pip install {NAME}", text)
    return re.sub(r'pip install "\.(\[\w+\])"', rf'pip install "{NAME}\1"', text)


def absolute(text: str, address: str, tag: str) -> str:
    """The text with links to files of the repository at a tag, and pictures as they are served."""

    def rewritten(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        if "://" in target or target.startswith("#"):
            return link[0]
        kind = "raw" if mark else "blob"
        return f"{mark}[{label}]({address}/{kind}/{tag}/{target})"

    return re.sub(r"(!?)\[([^\[\]]*)\]\(([^()\s]+)\)", rewritten, text)


if __name__ == "__main__":
    for page in (ROOT / name for name in PAGES):
        changed = from_index(page.read_text(encoding="utf-8"))
        if page.parent == ROOT and sys.argv[1:]:
            changed = absolute(changed, *sys.argv[1:])
        page.write_text(changed, encoding="utf-8")
