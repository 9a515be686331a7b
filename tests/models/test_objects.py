"""A model and a tokenizer as Python objects: pairs, names, refusals, files that load again."""

import pytest
import torch

from gxpo.base.errors import ModelError
from gxpo.models.objects import ModelObject
from gxpo.models.tiny import character_tokenizer, tiny_model

MODEL, TOKENIZER = tiny_model(hidden_size=8, intermediate_size=8), character_tokenizer()


def test_a_name_alone_is_no_object():
    assert ModelObject.of("tiny") is None and ModelObject.of(None) is None


def test_a_pair_is_the_same_as_two_arguments():
    pair, two = ModelObject.of((MODEL, TOKENIZER)), ModelObject.of(MODEL, TOKENIZER)
    assert pair is not None and two is not None
    assert pair.model is two.model is MODEL and pair.tokenizer is two.tokenizer is TOKENIZER
    assert pair.dtype == "float32" and pair.description.startswith("argument, a LlamaForCausalLM of ")


@pytest.mark.parametrize(
    ("model", "tokenizer", "words"),
    [
        ((MODEL,), None, r"give \(model, tokenizer\)"),
        ((MODEL, TOKENIZER), TOKENIZER, r"give \(model, tokenizer\)"),
        ("tiny", TOKENIZER, "brings its own"),
        (MODEL, None, "tokenizer is missing"),
        (MODEL, "gpt2", "is no tokenizer of transformers"),
        (type(MODEL), TOKENIZER, "the class LlamaForCausalLM is no model"),
        (torch.nn.Linear(1, 1), TOKENIZER, "a Linear is no model of transformers"),
        (MODEL.model, TOKENIZER, "give a LlamaForCausalLM"),
        (MODEL, character_tokenizer("<a>", "<b>"), "model.resize_token_embeddings"),
    ],
)
def test_errors_say_what_to_give_instead(model, tokenizer, words):
    with pytest.raises(ModelError, match=words):
        ModelObject.of(model, tokenizer)


def test_dtypes_that_no_learner_trains_are_refused():
    with pytest.raises(ModelError, match="parameters are float16"):
        ModelObject.of(tiny_model(hidden_size=8, intermediate_size=8).half(), TOKENIZER)


def test_both_are_written_for_transformers_to_read(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ModelObject(MODEL, TOKENIZER).save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.model.embed_tokens.weight, MODEL.model.embed_tokens.weight)
    assert AutoTokenizer.from_pretrained(tmp_path)("a").input_ids == TOKENIZER("a").input_ids
    assert all(file.stat().st_mode & 0o044 == 0o044 for file in tmp_path.rglob("*"))
