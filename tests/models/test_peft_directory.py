"""Directories of PEFT with an adapter alone: recognised, their base found here, refusals with the command to merge."""

import json

import pytest

from gxpo.base.errors import ModelError
from gxpo.models.peft_directory import base_of, config_home, is_adapter, merged_directory, tokenizer_home


@pytest.fixture
def adapter(tmp_path):
    """An adapter without a tokenizer, beside its base."""
    (tmp_path / "base").mkdir()
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "base")}))
    (folder / "adapter_model.safetensors").touch()
    return folder


def test_an_adapter_is_a_directory_without_weights_of_a_model(adapter):
    assert is_adapter(adapter) and not is_adapter(adapter.parent / "base")
    (adapter / "model.safetensors").touch()
    assert not is_adapter(adapter)


def test_config_and_tokenizer_are_those_of_the_base(adapter):
    base = adapter.parent / "base"
    assert base_of(adapter) == config_home(adapter) == tokenizer_home(adapter) == base
    (adapter / "tokenizer.json").touch()
    assert tokenizer_home(adapter) == adapter
    assert config_home(base) == tokenizer_home(base) == merged_directory(base, lambda config: None) == base


def test_a_pickle_is_never_loaded(adapter):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"without adapter_model\.safetensors; adapter_model\.bin is a pickle"):
        base_of(adapter)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "can't be read"),
        ("{}", "names no base model: merge it first"),
        ('{"base_model_name_or_path": "nobody/nothing"}', "is not on this machine: download it, or merge it first"),
        ('{"base_model_name_or_path": "not a / valid / id"}', "is not on this machine"),
    ],
)
def test_errors_say_how_to_merge(adapter, config, words):
    (adapter / "adapter_config.json").write_text(config)
    with pytest.raises(ModelError, match=words):
        base_of(adapter)


def test_an_adapter_of_an_adapter_is_refused(adapter):
    base = adapter.parent / "base"
    for file in adapter.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelError, match="is an adapter itself: merge that first"):
        merged_directory(adapter, lambda config: None)
