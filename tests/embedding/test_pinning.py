"""What identifies a model's content."""

from __future__ import annotations

from datamask.config.inputs import Embedding
from datamask.embedding.pinning import PIN, pin_model


def test_pins(tmp_path):
    """A folder's pin follows its files; a commit and the lexical embedder need no network."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "weights").write_bytes(b"one")
    before = pin_model(Embedding(model=str(tmp_path)))
    assert pin_model(Embedding(model=str(tmp_path))) == before
    (tmp_path / "weights").write_bytes(b"two")
    assert pin_model(Embedding(model=str(tmp_path))) != before
    assert pin_model(Embedding(model="a/b", revision="a" * 40)) == {PIN: "a" * 40}
    assert pin_model(Embedding(method="lexical")) == {PIN: "lexical-1"}
