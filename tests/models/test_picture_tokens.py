"""Generators of pictures' tokens: codebook and tokenizer, guidance in sampler and learner, runs on a random one."""

import json

import numpy as np
import pytest
import torch
import transformers
from tests.thorough import SLOW

import gxpo
from gxpo.base.errors import ConfigError, GxpoError, ModelError
from gxpo.base.media import PICTURES
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.forward import Decoder
from gxpo.models.guidance import guide
from gxpo.models.picture_tokens import Codebook
from gxpo.models.tiny import tiny_model
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.export import export
from gxpo.training.models import picture_tokens

CODES, CLASSES = 16, 2
NONE, END = 18, 19
BOOK = Codebook(np.arange(CODES * 4, dtype=np.uint8).reshape(CODES, 2, 2) * 4, 2, CLASSES)
PROMPTS = ((16,), (17,))
SAMPLING = Sampling(max_new_tokens=5, temperature=0.8)


def generator(seed=0, **more):
    sizes = {"hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"vocab_size": END + 1, "pad_token_id": END, "eos_token_id": END, "bos_token_id": None}
    model = tiny_model(seed, **sizes, **ids, num_key_value_heads=2, initializer_range=0.15, max_position_embeddings=128)
    if more:
        guide(model, BOOK, **more)
    return model


@pytest.fixture
def directory(tmp_path):
    generator().save_pretrained(tmp_path / "model")
    BOOK.tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_ids_are_patches_row_by_row_and_anything_else_is_black():
    pixels = BOOK.pixels([0, 1, 2, 3, END])
    # patches of 2 x 2 with values 4 k, of which every second row begins a new one
    assert pixels[..., 0].tolist() == [[0, 4, 16, 20], [8, 12, 24, 28], [32, 36, 48, 52], [40, 44, 56, 60]]
    assert pixels.shape == (4, 4, 3) and np.array_equal(BOOK.pixels([0, 1, 2, 3]), pixels)
    for ids in ([0, 1, 2], [0, 1, 2, END], [0, 1, 2, 16, 3]):
        assert BOOK.pixels(ids)[..., 0].tolist() == [*pixels[:2, :, 0].tolist(), [32, 36, 0, 0], [40, 44, 0, 0]]
    assert not BOOK.pixels([]).any() and np.array_equal(BOOK.pixels([0, 1, 2, 3, 9, 9]), pixels)
    grey = np.stack([pixels[..., 0], pixels[::-1, :, 0]])
    assert BOOK.encode(grey).tolist()[0] == [0, 1, 2, 3] and BOOK.encode(grey[:1] + 1).tolist() == [[0, 1, 2, 3]]


def test_the_codebook_goes_with_the_tokenizer(directory):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    again = Codebook.of(tokenizer)
    assert np.array_equal(again.patches, BOOK.patches) and (again.side, again.classes, again.none) == (2, CLASSES, NONE)
    assert tokenizer("1").input_ids == [17] and tokenizer.decode([3, 15, END]) == "k3 k15 <end>"
    assert tokenizer.convert_tokens_to_ids(["<none>", "<end>"]) == [NONE, END]
    assert Codebook.of(object()) is None
    # it is read once for a tokenizer, and anew for another, or where it has another codebook
    assert Codebook.of(tokenizer) is again
    other = transformers.AutoTokenizer.from_pretrained(directory)
    assert Codebook.of(other) is not again and np.array_equal(Codebook.of(other).patches, BOOK.patches)
    other.init_kwargs["codebook"] = {"patches": (BOOK.patches[:3] + 1).tolist(), "side": 1, "classes": 2}
    assert (Codebook.of(other).side, Codebook.of(other).none) == (1, 5)


def test_guided_logits_are_what_is_sampled_and_what_is_read():
    model, plain = generator(scale=2.0), generator()
    assert Decoder.why_not(model) == "its guidance takes two passes"
    requests = [Request(p, tuple(StreamKey(0, 1, str(p), i) for i in range(6))) for p in PROMPTS]
    groups = TorchEngine(model, BOOK.tokenizer()).sample(requests, SAMPLING)
    for prompt, completions in zip(PROMPTS, groups, strict=True):
        for c in completions:
            ids = [*prompt, *c.tokens]
            no_class = [NONE if x in (16, 17) else x for x in ids]  # a random model draws classes too
            with torch.no_grad():
                conditional, none = (
                    plain(input_ids=torch.tensor([x])).logits[0, :-1].double() for x in (ids, no_class)
                )
            by_hand = ((none + 2 * (conditional - none)) / 0.8).log_softmax(1)
            wanted = by_hand.gather(1, torch.tensor(c.tokens)[:, None])[:, 0].tolist()
            assert c.logprobs == pytest.approx(wanted, abs=1e-5)
    forest = Forest.from_completions(
        PROMPTS, [[c.tokens for c in g] for g in groups], rewards=[[float(i) for i in range(6)]] * 2,
        logprobs=[[c.logprobs for c in g] for g in groups], sampling={"temperature": 0.8},
    )  # fmt: skip
    learner = TorchLearner(model, lr=1e-3)
    assert torch.allclose(learner.outputs(forest)["logprob"], forest.path_behaviour_logprob, atol=1e-5)
    with pytest.raises(ModelError, match="no inner layers"):
        learner.outputs(forest, ("entropy@1",))


def test_gradients_go_through_both_passes():
    model = generator(scale=2.0)
    model(input_ids=torch.tensor([[16, 3]])).logits[0, -1].log_softmax(0)[5].backward()
    slope = model.get_input_embeddings().weight.grad.norm(dim=1)
    assert set(slope.nonzero().squeeze(1).tolist()) == {16, NONE, 3}


def settings(**more):
    keys = {"tasks.per_step": 2, "tasks.options": {"classes": 2, "success": {"brightness": 0.45}}, "eval.tasks": 2}
    return keys | {"sampling.max_new_tokens": 5, "trainer.rollouts_every": 1, "optim.lr": 1e-2} | more


@pytest.mark.filterwarnings("ignore:reward")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ar_grpo", {"rollout.group_size": 16}),
        pytest.param("grpo", {"rollout.group_size": 16}, marks=SLOW),
        pytest.param("tree_rl", {"sampling.guidance": 1.5}, marks=SLOW),
    ],
)
def test_a_generator_trains_shows_and_comes_back(name, more, directory, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    trained = gxpo.train(directory, "pictures", name, 2, "brightness", out=run, set=settings(**more))
    rows = trained.metrics
    assert rows[0]["weights_fingerprint"] != rows[1]["weights_fingerprint"] and rows[-1]["empty_steps"] == 0
    assert all(row["sampler_gap"] < 5e-5 and row["grad_norm"] > 0 for row in rows)
    records = [json.loads(line) for line in (run / "rollouts" / "step-000002.jsonl").read_text().splitlines()]
    for r in records:
        assert r["reward"] == pytest.approx(PICTURES.pixels(r["info"]["picture"]).mean() / 255)
        assert r["turns"][-1]["action_text"] == f"<image {r['info']['picture'][7:15]}>" or name == "tree_rl"
    assert "Pictures by prompt, before and after" in (run / "report.html").read_text()
    if name == "ar_grpo":
        export(run, out)
        weight = transformers.AutoModelForCausalLM.from_pretrained(out).lm_head.weight
        assert not torch.equal(weight, generator().lm_head.weight)
        assert Codebook.of(transformers.AutoTokenizer.from_pretrained(out)).classes == CLASSES


@pytest.mark.parametrize(
    ("model", "task", "keys", "message"),
    [
        ("tiny:cold", "arithmetic", {}, "prompts of model tiny:cold have none that could be left out"),
        ("DIRECTORY", "pictures", {"sampling.engine": "vllm"}, "can't have sampling.engine=vllm"),
        ("DIRECTORY", "pictures", {"sampling.null_condition": 3}, "can't have sampling.null_condition"),
        ("tokens:letters", "pictures", {}, "there is tokens:digits"),
    ],
)
def test_guidance_that_has_no_meaning_is_refused(model, task, keys, message, directory, tmp_path):
    with pytest.raises((ConfigError, ModelError), match=message):
        gxpo.train(model.replace("DIRECTORY", directory), task, "ar_grpo", 1, out=tmp_path / "run", set=keys)


def test_a_class_that_the_generator_does_not_have_is_refused(directory, tmp_path):
    with pytest.raises(GxpoError, match="reads a class, a whole number below 2, not '3'"):
        gxpo.train(directory, "pictures", "grpo", 1, out=tmp_path / "run", set={"tasks.options": {"classes": [3]}})


@pytest.mark.thorough
def test_the_generator_of_digits_draws_its_class(tmp_path):
    """A reader of real digits sees the class asked for in most pictures; nearly all samples end where they should."""
    from sklearn.linear_model import LogisticRegression

    model = transformers.AutoModelForCausalLM.from_pretrained(folder := picture_tokens.directory())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    book = Codebook.of(tokenizer)
    requests = [Request((64 + c,), tuple(StreamKey(0, 1, str(c), i) for i in range(30))) for c in range(10)]
    groups = TorchEngine(model, tokenizer).sample(requests, Sampling(max_new_tokens=64))
    made = [(c, book.pixels(y.tokens)) for c, g in enumerate(groups) for y in g]
    pixels, classes = picture_tokens.digits()
    reader = LogisticRegression(max_iter=300).fit(pixels.reshape(-1, 64) / 255, classes)
    read = reader.predict(np.stack([x[..., 0].ravel() for _, x in made]) / 255)
    assert sum(len(y.tokens) == 17 for g in groups for y in g) >= 285 and np.mean(read == [c for c, _ in made]) > 0.8
