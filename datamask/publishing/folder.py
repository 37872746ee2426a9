"""The folder RUN/publication/: the content of the dataset repository, ready for upload.

A dry run writes the same folder, byte for byte.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.utils.sha import git_hash

from datamask.config.outputs import Publication
from datamask.publishing.card import card_text, signed
from datamask.publishing.configurations import configurations
from datamask.runs.files import replace_file, write_text_file
from datamask.runs.output import refuse_damaged
from datamask.runs.run import Run
from datamask.runs.stages import STAGES, stages_of
from datamask.selection.model_file import TENSORS, read_about
from datamask.storage.local import sha256_of
from datamask.storage.names import inside

READ_OF_ALL_UNITS = ("subset", "documents", "training")
"""Stages with a file per unit that are published or shown in the card; all single files are too."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of the publication folder.

    Args:
        path: within the repository.
        source: on this machine.
        size: bytes.
        sha256: of the content when the file was written.
    """

    path: str
    source: Path
    size: int
    sha256: str

    def is_at(self, remote: Any) -> bool:
        """Return True if the repository's file (a `RepoFile`) has this content."""
        if remote.lfs is not None:
            return bool((remote.size, remote.lfs.sha256) == (self.size, self.sha256))
        # The Hub names a small file by git's hash.
        is_alike: bool = remote.size == self.size
        return is_alike and bool(remote.blob_id == git_hash(self.source.read_bytes()))


def write_folder(run: Run, publication: Publication) -> list[LocalFile]:
    """Update RUN/publication/: README.md, the configurations' files and the report's pictures.

    Subset files and pictures are symbolic links if the file system supports them, else copies. All
    other files in the folder are removed.

    Raises:
        RunError: a file of the subset is missing or stale.
        CorruptFileError: a file that is published, or whose figures are in the card, is damaged.
    """
    _check_inputs(run, publication)
    folder = inside(run.root, "publication")
    configs = configurations(run, publication, folder)
    sources = {name: path for config in configs for name, path in config.files.items()}
    pictures = [run.fetch(name) for name in run.storage.list("pictures", "*.png")]
    sources |= {f"pictures/{picture.name}": picture for picture in pictures}
    if "mask_model" in publication.include:
        path = run.path("mask_model")
        read_about(str(path.parent))
        files = (path, run.fetch(f"{path.parent.name}/{TENSORS}"))
        sources |= {f"{path.parent.name}/{file.name}": file for file in files}
    card = card_text(run, publication, configs, [picture.stem for picture in pictures])
    for name, source in sources.items():
        _link(source, inside(run.root, f"publication/{name}"))
    write_text_file(inside(run.root, "publication/README.md"), signed(card))
    names = ["README.md", *sorted(sources)]
    _remove_others(folder, {folder / name for name in names})
    return [_local_file(run, name, sources.get(name, folder / name)) for name in names]


def _check_inputs(run: Run, publication: Publication) -> None:
    for stage in stages_of(run.settings, last="report"):
        is_read = stage == "tokens" and "tokens" in publication.include
        if STAGES[stage].file or stage in READ_OF_ALL_UNITS or is_read:
            for unit in range(run.num_units(stage)):
                refuse_damaged(run, stage, unit)
    for unit in range(run.num_units("subset")):
        run.receipt("subset", unit)


def _link(source: Path, target: Path) -> None:
    relative = os.path.relpath(source, target.parent)
    if source == target or (target.is_symlink() and os.readlink(target) == relative):
        return
    with replace_file(target) as temporary:
        try:
            temporary.symlink_to(relative)
        except OSError:
            shutil.copyfile(source, temporary)


def _remove_others(folder: Path, kept: set[Path]) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in kept:
            path.unlink()


def _local_file(run: Run, path: str, source: Path) -> LocalFile:
    noted = run.storage.noted_sha256(source.relative_to(run.root).as_posix())
    return LocalFile(path, source, source.stat().st_size, noted or sha256_of(source)[0])
