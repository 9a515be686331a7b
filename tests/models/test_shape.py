"""Sizes of models: known names, configurations, mixtures of experts, refusals."""

import json

import pytest

from gxpo.base.errors import ModelError
from gxpo.models.shape import shape_of, stated_shape

LLAMA = {
    "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 6, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip


def config(folder, **settings):
    (folder / "config.json").write_text(json.dumps({**LLAMA, **settings}))
    return str(folder)


def test_a_configuration_is_counted_without_weights(tmp_path):
    # embedding and head 2 * 10 * 8, norm 8; a layer: q and o 2 * 64, k and v 2 * 8 * 4, MLP 3 * 8 * 6, norms 2 * 8
    shape = shape_of(config(tmp_path))
    assert shape.parameters == shape.active == 168 + 2 * (128 + 64 + 144 + 16) == 872
    assert (shape.layers, shape.kv_layers, shape.kv_heads, shape.head_dim) == (2, 2, 2, 2)
    assert shape.kv_bytes_per_token == 4 * 2 * 2 * 2  # 2 bytes each of keys and values
    assert shape.largest_unit == 436  # half of all, more than the embeddings' 80


def test_tied_embeddings_are_counted_once(tmp_path):
    assert shape_of(config(tmp_path, tie_word_embeddings=True)).parameters == 872 - 80


def test_a_token_goes_through_some_of_the_experts(tmp_path):
    shape = shape_of(config(tmp_path, model_type="mixtral", num_local_experts=4, num_experts_per_tok=1))
    # of 2 layers' experts with 3 * 8 * 6 weights each three in four are not active
    assert shape.parameters - shape.active == 2 * 3 * 144


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"])
def test_known_names_need_no_owner_and_no_variant(name):
    assert shape_of(name).parameters == 7_615_616_512


def test_stated_sizes_are_needed_in_full():
    assert stated_shape(1e9, 2, 8, 1, 4, 10).kv_bytes_per_token == 4 * 2 * 1 * 4
    with pytest.raises(ModelError, match="--parameters needs --layers, --vocabulary too"):
        stated_shape(1e9, None, 8, 1, 4, None)


def test_unknown_models_and_latent_caches_are_refused(tmp_path):
    with pytest.raises(ModelError, match="no file"):
        shape_of(str(tmp_path / "config.json"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a configuration of a transformers model"):
        shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v3", "kv_lora_rank": 8}')
    with pytest.raises(ModelError, match="caches latent vectors"):
        shape_of(str(tmp_path))
