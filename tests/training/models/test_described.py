"""Tokenizer and config of a model by name, without its weights (`describe`)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from gxpo.base.errors import ModelError
from gxpo.models import smollm2
from gxpo.training.models import ModelDescription, character_tokenizer, describe, load, tiny_model

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}


def saved(folder: Path, width: int = 32) -> Path:
    """A model directory; its width tells models apart."""
    tiny_model(0, **(SMALL | {"hidden_size": width})).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages of fetches of SmolLM2, in whose place a model of width 48 is fetched."""
    messages: list[str] = []
    folder = saved(tmp_path / "smollm2", 48)

    def fetch(cache: object, notify: object) -> Path:
        assert cache is None and callable(notify)
        notify("fetched")
        return folder

    monkeypatch.setattr(smollm2, "smollm2", fetch)
    return messages


def test_smollm2_is_described_by_the_fetched_directory(fetched: list[str], tmp_path: Path) -> None:
    described = describe(smollm2.NAME, task="arithmetic", notify=fetched.append)
    assert described.path == tmp_path / "smollm2" and described.config.hidden_size == 48
    assert len(described.tokenizer) == len(character_tokenizer()) and fetched == ["fetched"]


def test_a_directory_is_described_without_a_fetch(fetched: list[str], tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine", 64)
    described = describe(str(folder), task="arithmetic", notify=fetched.append)
    assert isinstance(described, ModelDescription) and described.path == folder and described.config.hidden_size == 64
    assert described.tokenizer.pad_token_id is not None and fetched == []


def test_a_directory_needs_its_weights_though_they_are_not_read(tmp_path: Path) -> None:
    folder = saved(tmp_path / "mine")
    (folder / "model.safetensors").write_bytes(b"")  # no tensor could be read from it
    assert describe(str(folder), task="").config.hidden_size == 32
    with pytest.raises(ModelError, match="can't be loaded"):
        load(str(folder), task="")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        describe(str(folder), task="")


@pytest.mark.parametrize("name", ["tiny:cold", "tiny-vision:cold"])
def test_an_untrained_model_has_no_directory(fetched: list[str], name: str) -> None:
    with pytest.raises(ModelError, match=f"{name} comes from no directory: export it"):
        describe(name, task="arithmetic", notify=fetched.append)
    assert fetched == []


def test_a_name_that_nothing_has_is_refused_by_name(fetched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, **options: object) -> object:
        raise OSError(f"no such model {name}\nsecond line")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", missing)
    with pytest.raises(ModelError, match=r"model 'somebody/model' can't be read: no such model somebody/model second"):
        describe("somebody/model", task="arithmetic", notify=fetched.append)
    assert fetched == []
