"""Random models: sizes, repeatability, and the global random state."""

import pytest
import torch

from gxpo.bench.random_models import KINDS, TINY, Kind, Sizes


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_seed_gives_one_model_and_leaves_global_rng_alone(kind):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (KINDS[kind].model(TINY, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    first, again, third = (next(m.parameters()) for m in (one, same, other))
    assert torch.equal(first, again) and not torch.equal(first, third)
    assert not one.training and one.config.vocab_size == TINY.vocabulary


def test_a_string_with_a_dollar_names_a_size():
    kind = Kind("Qwen2", "", {"sliding_window": "$window", "use_sliding_window": True, "head_dim": None})
    config = kind.model(Sizes(31, 32, 48, 2, 4, 2, 8, 64, window=7)).config
    assert config.sliding_window == 7 and config.num_hidden_layers == 2
