"""Masked models by name and from directories; their settings before a run; the warm-up's loss."""

import numpy as np
import pytest
import torch
from tests.models.masked_toys import SETTINGS, bert

import gxpo
from gxpo.algorithms.likelihoods.base import Answer
from gxpo.base.errors import ConfigError, ModelError
from gxpo.models.masked import MaskedPolicy
from gxpo.models.tiny import MASK, character_tokenizer, tiny_masked_model, tokenizer_of_built_in
from gxpo.training import config, models
from gxpo.training.models.load import is_masked, warm_task
from gxpo.training.models.masked import States, masked_accuracy, masked_loss
from gxpo.training.models.without_weights import positions
from gxpo.training.preflight import check_settings

KEYS = {"model": "tiny-masked:cold", "task": "arithmetic", "method": "diffu_grpo", "sampling.max_new_tokens": 8}


def refused(**keys):
    from gxpo.parts.definition import SettingValue

    changed = {**KEYS, **{k.replace("__", "."): v for k, v in keys.items()}}
    resolved = config.resolve({k: SettingValue(v, "argument") for k, v in changed.items()})
    check_settings(resolved.settings, resolved.method)


def test_the_tiny_masked_model_goes_by_names_like_the_others():
    assert warm_task("tiny-masked", "arithmetic") == "arithmetic-masked"
    assert warm_task("tiny-masked:arithmetic", "shop") == "arithmetic-masked"
    assert warm_task("tiny-masked:cold", "arithmetic") is None and warm_task("tiny", "arithmetic") == "arithmetic"
    assert is_masked("tiny-masked") and is_masked("tiny-masked:cold") and not is_masked("tiny")
    assert positions("tiny-masked", "arithmetic") == 512
    tokenizer = tokenizer_of_built_in("tiny-masked")
    assert tokenizer.mask_token == MASK and tokenizer.decode([*tokenizer("7+6").input_ids]) == "<bos>7+6"


def test_equal_seeds_give_equal_masked_models():
    first, second, other = (tiny_masked_model(seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert any(not torch.equal(first[k], other[k]) for k in first)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random BERT of transformers with a tokenizer that ends texts with a separator."""
    from tokenizers import Regex, Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789+="]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(folder)
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**{**SETTINGS, "vocab_size": len(words), "initializer_range": 0.02})).save_pretrained(
        folder
    )
    return folder


def test_a_masked_model_of_transformers_is_loaded_as_one(directory):
    loaded = models.load(str(directory), task="arithmetic")
    policy = MaskedPolicy.of(loaded.model, loaded.tokenizer)
    assert is_masked(str(directory)) and type(loaded.model).__name__ == "BertForMaskedLM"
    assert (policy.mask, policy.end, policy.pad) == (4, 3, 0) and policy.positions == 32


@pytest.mark.filterwarnings("ignore:reward")
def test_any_masked_model_trains(directory, tmp_path):
    keys = {"tasks.per_step": 2, "rollout.group_size": 8, "sampling.max_new_tokens": 4, "eval.tasks": 2}
    odd = lambda completion: float(sum(map(ord, completion)) % 2)  # noqa: E731  a closure: it runs in process
    run = gxpo.train(str(directory), "arithmetic", "cj_grpo", 1, odd, out=tmp_path / "run", set=keys)
    (row,) = run.metrics
    assert row["grad_norm"] > 0 and row["sampler_gap"] < 1e-5


def test_a_causal_model_is_no_masked_policy():
    from gxpo.models.tiny import tiny_model

    with pytest.raises(ModelError, match="LlamaForCausalLM is no masked language model"):
        MaskedPolicy.of(tiny_model(), character_tokenizer(MASK))
    with pytest.raises(ModelError, match="no mask token"):
        MaskedPolicy.of(bert(), character_tokenizer())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "grpo"}, "fills in hidden tokens, and grpo reads log-probs from left to right"),
        ({"model": "tiny"}, "likelihood=one_step is of masked language models, and model tiny is none"),
        ({"model": "flow"}, "model flow has no tokens"),
        ({"sampling__engine_options": {"block": 3}}, "max_new_tokens=8 is no whole number of blocks of 3 tokens"),
        ({"learner__lora_rank": 4}, "can't have learner.lora_rank=4"),
        ({"sampling__top_k": 4}, "can't have sampling.top_k=4"),
        ({"sampling__stop": ["#"]}, "can't have sampling.stop"),
        ({"async__max_staleness": 1}, "can't have async.max_staleness=1"),
    ],
)
def test_bad_settings_are_refused_in_one_line(keys, message):
    with pytest.raises(ConfigError, match=message) as error:
        refused(**keys)
    assert "\n" not in str(error.value)


def test_good_settings_are_not():
    refused()
    refused(method="grpo", likelihood="trajectory")


def test_a_warm_up_reads_what_a_decoder_in_blocks_meets():
    n, prompt, block = 10, 3, 4
    views = [States(block).views(Answer(prompt, torch.arange(n), seed)) for seed in range(4000)]
    hidden, weight = (torch.cat(x) for x in zip(*views, strict=True))
    assert not bool(hidden[:, :prompt].any())
    hidden, read = hidden[:, prompt:], weight > 0
    # whatever is hidden and not read is behind the block that is
    last_read = torch.where(read, torch.arange(n), -1).amax(1)
    in_blocks = (hidden & ~read).any(1)
    is_behind = torch.arange(n) >= (last_read // block * block + block)[:, None]
    assert torch.equal((hidden & ~read)[in_blocks], is_behind[in_blocks]) and bool((hidden | ~read).all())
    assert set(weight.unique().tolist()) == {0.0, 1.0} and bool(read.any(1).all())
    assert float(read.double().mean(0).min()) > 0.2  # every place is read often
    # half are of blocks, the last of which (a third) leaves nothing behind it: 1/3
    assert float(in_blocks.double().mean()) == pytest.approx(1 / 3, abs=4 * (2 / 9 / 4000) ** 0.5)


def test_a_step_of_the_warm_up_lowers_its_loss():
    from gxpo.environments.tasks import make

    model, tokenizer, source = tiny_masked_model(), character_tokenizer(MASK), make("arithmetic", seed=0, options={})
    examples = [(t.prompt, source.worked_example(t)) for t in source.draw(8, 1)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        loss = masked_loss(model, tokenizer, examples, 20, np.random.default_rng(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    correct, well_formed = masked_accuracy(model, tokenizer, source, source.held_out(2), 20)
    assert 0 <= correct <= well_formed <= 1
