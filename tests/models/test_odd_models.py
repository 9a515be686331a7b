"""What models that people have are caught out by: padded vocabularies, several ends, tied weights, subclasses."""

import copy

import pytest
import torch
from tests.models.decoder.test_architectures import FORKED, alone, learner, made, sampled
from transformers import LlamaForCausalLM

from gxpo.base.errors import ModelError
from gxpo.bench.random_models import KINDS, TINY, Sizes
from gxpo.learning.lora import LoraSettings, merge_adapters
from gxpo.models.decoder.forward import Decoder
from gxpo.models.tiny import character_tokenizer
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines import network
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models.check import check_loaded
from gxpo.training.models.load import LoadedModel, load

WIDE = Sizes(128, 32, 48, 2, 4, 2, 12, 256, 4, 4)  # more ids than the tokenizer's 100


def test_a_padded_vocabulary_and_a_pad_token_that_is_an_end(tmp_path):
    model, tokenizer = KINDS["qwen2"].model(WIDE), character_tokenizer()
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = [5, 2], 2
    tokenizer.pad_token = tokenizer.eos_token
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path), task="arithmetic")
    assert loaded.eos_ids == (2, 5) and loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 2
    engine = TorchEngine(loaded.model, loaded.tokenizer)
    ((*drawn_value,),) = engine.sample(
        [Request((7, 8, 9), tuple(StreamKey(0, 0, "", i) for i in range(64)))], Sampling()
    )
    ends = {c.tokens[-1] for c in drawn_value if c.finish == "stop"}
    assert ends == {2, 5} and not any({2, 5} & set(c.tokens[:-1]) for c in drawn_value)
    assert max(max(c.tokens) for c in drawn_value) >= 100
    actual = check_loaded(loaded)
    assert (actual.forward, actual.training, actual.tied_head, actual.problems) == ("fast", "packed", True, [])
    assert actual.vocabulary == "128 (tokenizer: 100)" and actual.end_ids == [2, 5]
    assert max(actual.sampler_gap, actual.transformers_gap) < 1e-5
    assert any("ids from 100 on are no tokens" in note for note in actual.notes)
    assert "forward           fast\n" in actual.text() and "problems          \n" not in actual.text()


def test_what_is_wrong_with_a_model_is_a_problem():
    model, tokenizer = made("llama"), character_tokenizer()
    model.generation_config.eos_token_id = tokenizer.eos_token = None
    actual = check_loaded(LoadedModel(model, tokenizer, "odd", None))
    assert actual.end_ids == [] and len(actual.problems) == 2
    assert "the tokenizer has 100 tokens, the model 31" in actual.problems[0]
    assert "no end-of-sequence id is known" in actual.problems[1]


@pytest.mark.parametrize(("name", "forward", "training"), [
    ("lfm2", "transformers: Lfm2ForCausalLM is not one of the architectures", "flat: it has conv layers"),
    ("gpt2", "transformers: GPT2LMHeadModel is not one", "packed"),
    ("qwen3-moe", "fast", "packed"),
])  # fmt: skip
def test_how_a_model_is_run_is_said_with_the_reason(name, forward, training):
    actual = check_loaded(LoadedModel(KINDS[name].model(WIDE), character_tokenizer(), name, None))
    assert actual.forward.startswith(forward) and actual.training == training and actual.problems == []
    assert any("load-balancing loss" in note for note in actual.notes) == (name == "qwen3-moe")


def test_the_loss_of_routers_that_is_not_trained_is_said():
    with pytest.warns(UserWarning, match=r"its load-balancing loss \(router_aux_loss_coef 0.001\) is not part"):
        from gxpo.learning.torch import TorchLearner

        TorchLearner(made("qwen3-moe"), lr=0.0)


class Doubled(LlamaForCausalLM):
    """A subclass whose logits are other ones."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = 2 * out.logits
        return out


class Renamed(LlamaForCausalLM):
    """A subclass that changes nothing."""


def test_a_subclass_is_fast_only_where_it_computes_the_same():
    config = KINDS["llama"].model(TINY).config
    assert Decoder.of(Renamed(config).eval()) is not None
    odd = Doubled(config).eval()
    with pytest.warns(UserWarning, match="Doubled is run by transformers: it does not do what its configuration says"):
        assert Decoder.of(odd) is None
    forest = sampled(TorchEngine(odd, stop_ids=[]), False)
    assert torch.allclose(forest.path_behaviour_logprob, alone(odd, forest)["logprob"], rtol=0, atol=1e-5)
    own_learner = learner(odd)
    assert not own_learner._readout.is_split and own_learner._readout.decoder is None
    assert torch.allclose(own_learner.outputs(forest)["logprob"], forest.path_behaviour_logprob, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mistral-window", "gemma3", "qwen2-window"])
def test_windows_unlike_the_configuration_are_noticed(name):
    """Also where the window is wider than the probe."""
    model = KINDS[name].model(TINY, sliding_window=100)
    assert Decoder.of(model) is not None
    forward = model.model.forward
    model.model.forward = lambda *args, **kwargs: forward(*args, **{**kwargs, "attention_mask": full(model, kwargs)})
    with pytest.warns(UserWarning, match="is run by transformers"):
        assert Decoder.of(model) is None


def full(model, kwargs):
    """Masks of full attention for every kind of layer."""
    n = kwargs["input_ids"].shape[1]
    mask = torch.ones(n, n).tril().log()[None, None]
    return mask if model.config.model_type == "mistral" else {"full_attention": mask, "sliding_attention": mask}


@pytest.mark.parametrize("targets", [("lm_head", "q_proj"), ("embed_tokens",)])
def test_an_adapter_on_a_weight_that_is_used_twice_is_refused(targets):
    with pytest.raises(ModelError, match="whose head is its embedding"):
        learner(made("llama-3"), lora=LoraSettings(rank=4, targets=targets))


def test_an_adapter_on_the_head_is_read_by_sampler_and_learner():
    own_learner = learner(made("llama"), lora=LoraSettings(rank=4, targets=("lm_head", "q_proj")))
    draw = torch.Generator().manual_seed(1)
    own_learner.restore({n: x + 0.1 * torch.randn(x.shape, generator=draw) for n, x in own_learner.snapshot().items()})
    bare = alone(own_learner.model, FORKED)["logprob"]
    assert torch.allclose(own_learner.outputs(FORKED)["logprob"], bare, rtol=0, atol=1e-5)
    one = merge_adapters(copy.deepcopy(own_learner.model))
    assert torch.allclose(alone(one, FORKED)["logprob"], bare, rtol=0, atol=1e-5)


def test_longrope_ends_where_keys_would_turn():
    factors = {"short_factor": [1.0, 1.3], "long_factor": [2.0, 3.0], "original_max_position_embeddings": 16}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5, **factors}
    model = made("phi3", rope_parameters=rope, original_max_position_embeddings=16)
    engine, own_learner = TorchEngine(model, stop_ids=[]), learner(model)
    assert own_learner._readout.decoder is not None and engine.network.decoder is not None
    short = [Request((5, 6, 7), (StreamKey(0, 0, "a", 0),))]
    ((message,),) = engine.sample(short, Sampling(max_new_tokens=13))
    rows = model(torch.tensor([[5, 6, 7, *message.tokens]]), use_cache=False).logits[0].double().log_softmax(-1)
    expected = rows[2:-1].gather(1, torch.tensor(message.tokens)[:, None])[:, 0].detach()
    assert torch.allclose(torch.tensor(message.logprobs, dtype=torch.float64), expected, rtol=0, atol=1e-5)
    with pytest.raises(ModelError, match="16 positions of Phi3ForCausalLM before its longrope turns every key anew"):
        engine.sample(short, Sampling(max_new_tokens=14))


def test_a_cache_whose_forks_are_wrong_is_refused(monkeypatch):
    """Rows that share a state, as a shallow copy of a recurrent layer would."""
    monkeypatch.setattr(network, "rows_of", lambda cache, rows: cache)
    monkeypatch.setattr(network, "spread", lambda cache, rows, room: copied(cache, rows.flip(0)))
    with pytest.raises(ModelError, match="Lfm2ForCausalLM: samples that go on from its cache differ"):
        TorchEngine(made("lfm2"))


def copied(cache, rows):
    from gxpo.sampling.engines.cache import rows_of

    return rows_of(cache, rows)
