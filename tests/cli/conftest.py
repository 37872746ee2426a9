"""A whole run through the command line."""

from pathlib import Path

import pytest

from tests.cli.commands import in_a_terminal, settings, text_corpus
from tests.conftest import leave_out_charts


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A whole run through the command line: its root, its source and what was printed."""
    folder = tmp_path_factory.mktemp("cli")
    source = text_corpus(folder / "source")
    with pytest.MonkeyPatch.context() as patch:
        leave_out_charts(patch)
        status, printed, terminal = in_a_terminal("rebuild", folder / "run", *settings(source))
    assert status == 0, terminal
    (folder / "terminal").write_text(terminal)
    return folder / "run", source, printed
