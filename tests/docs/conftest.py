"""A folder in which the commands of README and tutorial have run, as a reader would run them."""

import webbrowser
from pathlib import Path

import pytest
import vl_convert

from tests.conftest import measure_roughly
from tests.docs.pages import ROOT, blocks, command_lines, words_of
from tests.finished import corpus
from tests.malformed.commands import run_main


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data` has 120 documents; every command of `datamask` succeeds. Charts are left out."""
    folder = tmp_path_factory.mktemp("workplace")
    corpus(folder / "data")
    done = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        measure_roughly(patch)
        patch.setattr(webbrowser, "open", lambda address: True)
        patch.setattr(vl_convert, "vegalite_to_png", lambda *_, **__: b"")
        patch.setattr(vl_convert, "vegalite_to_svg", lambda *_, **__: "")
        for page in (ROOT / "README.md", ROOT / "docs/tutorial.md"):
            for block in blocks(page, ""):
                for words in map(words_of, command_lines(block)):
                    # The tutorial repeats README's commands, but `init` changes no file.
                    if words[0] == "datamask" and words not in done:
                        assert run_main(words[1:]) == 0, f"{block}: {' '.join(words)}"
                        done.append(words)
    return folder
