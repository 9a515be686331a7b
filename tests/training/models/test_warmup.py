import dataclasses
import json

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoTokenizer

from gxpo.base.errors import ModelError
from gxpo.environments.tasks import make
from gxpo.environments.tasks.source import stream
from gxpo.training.models import WARMUPS, Recipe, character_tokenizer, tiny_model, warm_start
from gxpo.training.models.warmup import Habits, _supervised_loss, cache_directory, greedy_accuracy

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
# whatever comes out is inside the band
QUICK = Recipe(
    dimensions=SMALL, batch=8, first_check=2, check_every=1, max_steps=4, low=0, high=1, well_formed=0, checked_on=12
)


def test_it_is_made_once(tmp_path):
    checks = []
    first = warm_start("arithmetic", cache=tmp_path, recipe=QUICK, progress=checks.append)
    assert [(c.step, c.accuracy is None) for c in checks] == [(1, True), (2, False)]
    time_by_file = {file: file.stat().st_mtime_ns for file in first.iterdir()}
    assert warm_start("arithmetic", cache=tmp_path, recipe=QUICK, progress=checks.append) == first
    assert len(checks) == 2 and {file: file.stat().st_mtime_ns for file in first.iterdir()} == time_by_file
    assert list(tmp_path.iterdir()) == [first]


def test_the_directory_is_what_transformers_loads(tmp_path):
    path = warm_start("arithmetic", cache=tmp_path, recipe=QUICK)
    model = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert model.config.hidden_size == 32 and {p.dtype for p in model.parameters()} == {torch.float32}
    assert tokenizer("1\n").input_ids == character_tokenizer()("1\n").input_ids
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 2)
    report = json.loads((path / "warmup.json").read_text())
    assert report["steps"] == 2 and 0 <= report["accuracy"] <= report["well_formed"] <= 1


def test_warm_up_does_not_depend_on_earlier_random_draws(tmp_path):
    first = warm_start("arithmetic", cache=tmp_path / "a", recipe=QUICK)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    second = warm_start("arithmetic", cache=tmp_path / "b", recipe=QUICK)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.name == second.name
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


def test_seed_and_recipe_name_different_directories(tmp_path):
    paths = {
        warm_start("arithmetic", cache=tmp_path, recipe=QUICK),
        warm_start("arithmetic", seed=1, cache=tmp_path, recipe=QUICK),
        warm_start("arithmetic", cache=tmp_path, recipe=dataclasses.replace(QUICK, lr=1e-3)),
        warm_start("countdown", cache=tmp_path, recipe=QUICK),
    }
    weights = {(path / "model.safetensors").read_bytes() for path in paths}
    assert len(paths) == len(weights) == 4


def test_outside_the_band_is_an_error_and_leaves_nothing(tmp_path):
    strict = dataclasses.replace(QUICK, low=0.99)
    with pytest.raises(ModelError, match=r"missed its band: greedy accuracy 0.99 to 1 .* try another seed") as caught:
        warm_start("arithmetic", cache=tmp_path, recipe=strict)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_the_first_check_inside_the_band_ends_it(tmp_path):
    checks = []
    formed = dataclasses.replace(QUICK, well_formed=0.5)
    with pytest.raises(ModelError):  # a model of four steps does not write answers
        warm_start("arithmetic", cache=tmp_path, recipe=formed, progress=checks.append)
    assert [c.step for c in checks] == [1, 2, 3, 4]


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("transformers.LlamaForCausalLM.save_pretrained", full)
    with pytest.raises(OSError, match="no space"):
        warm_start("arithmetic", cache=tmp_path, recipe=QUICK)
    assert not list(tmp_path.iterdir())


def test_another_process_may_be_faster(tmp_path, monkeypatch):
    import gxpo.training.models.warmup as module

    full_warm_up = module.warm_up
    done = []

    def warm_up(*args, **kwargs):
        result = full_warm_up(*args, **kwargs)
        if not done:
            done.append(True)
            warm_start("arithmetic", cache=tmp_path, recipe=QUICK)  # the other one
        return result

    monkeypatch.setattr(module, "warm_up", warm_up)
    path = warm_start("arithmetic", cache=tmp_path, recipe=QUICK)
    assert list(tmp_path.iterdir()) == [path] and (path / "warmup.json").is_file()


def test_unknown_task():
    with pytest.raises(ModelError, match="did you mean 'arithmetic'"):
        warm_start("arithmetics")
    with pytest.raises(ModelError, match="'tiny:cold'"):
        warm_start("reasoning_gym:gcd")


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("GXPO_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory(tmp_path) == tmp_path
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("GXPO_CACHE")
    assert cache_directory() == tmp_path / "xdg" / "gxpo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / "home" / ".cache" / "gxpo"


def test_the_author_errs_as_often_as_the_recipe_says():
    author = Habits(Recipe(habits=0.3, habitual=0.7, slips=0.1), stream(0))
    wrong_share = []
    for question in (f"q{i}" for i in range(300)):
        answers = [author(question, 10) for _ in range(60)]
        assert set(answers) <= {8, 9, 10, 11, 12}
        wrong = [w for w in answers if w != 10]
        wrong_share.append(len(wrong) / 60)
        if wrong_share[-1] > 0.4:  # a habit is one and the same wrong answer
            assert len(set(wrong)) == 1
    habits = [share for share in wrong_share if share > 0.4]
    others = [share for share in wrong_share if share <= 0.4]
    assert 0.22 < len(habits) / 300 < 0.38
    assert abs(sum(habits) / len(habits) - 0.7) < 0.03
    assert abs(sum(others) / len(others) - 0.1) < 0.02
    assert min(Habits(Recipe(habits=1, habitual=1), stream(0))(f"q{i}", 0) for i in range(50)) >= 0


def test_the_supervised_loss_counts_answer_tokens_only():
    tokenizer, model = character_tokenizer(), tiny_model(1, **SMALL)
    examples = [("1+1=", "#2"), ("10+11=", "0+1=1#21"), ("5=", "#5")]
    expected, count = 0.0, 0
    for prompt, answer in examples:  # one at a time, one token at a time
        context = tokenizer(prompt).input_ids
        for token in [*tokenizer(answer, add_special_tokens=False).input_ids, tokenizer.eos_token_id]:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([context])).logits[0, -1]
            expected -= torch.log_softmax(logits.double(), -1)[token].item()
            count += 1
            context = [*context, token]
    assert _supervised_loss(model, tokenizer, examples).item() == pytest.approx(expected / count, rel=1e-5)


def test_greedy_accuracy_agrees_with_one_prompt_at_a_time():
    tokenizer, model = character_tokenizer(), tiny_model(2, **SMALL)
    source = make("arithmetic", seed=0, options={"digits": 1})
    tasks = source.draw(3, 0) + make("arithmetic", seed=0, options={"digits": 3}).draw(2, 0)  # two prompt lengths
    expected = []
    for task in tasks:
        context = tokenizer(task.prompt).input_ids
        start = len(context)
        for _ in range(6):
            context.append(int(model(input_ids=torch.tensor([context])).logits[0, -1].argmax()))
            if context[-1] == tokenizer.eos_token_id:
                break
        expected.append((context[start:], context[-1] == tokenizer.eos_token_id))
    evaluated_tasks = []

    class Recording:
        @staticmethod
        def scorer(text, task):
            evaluated_tasks.append((task.id, text))
            return {"correct": 1.0, "format": 0.5}

    correct, formed = greedy_accuracy(model, tokenizer, Recording(), tasks, 6)
    ended = [(t.id, tokenizer.decode(ids[:-1])) for t, (ids, end) in zip(tasks, expected, strict=True) if end]
    assert sorted(evaluated_tasks) == sorted(ended)
    assert (correct, formed) == (len(ended) / 5, 0.5 * len(ended) / 5)


@pytest.mark.thorough
@pytest.mark.warm_start
def test_the_warm_start_of_the_demonstration_is_inside_the_band():
    # the real one, in the user's cache, so that it is made once for all tests and for the demonstration
    path = warm_start("arithmetic")
    report = json.loads((path / "warmup.json").read_text())
    recipe = WARMUPS["arithmetic"]
    assert recipe.low <= report["accuracy"] <= recipe.high and report["well_formed"] >= 0.95
    source = make("arithmetic", seed=0)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    tasks = source.held_out(1000)
    accuracy, well_formed = greedy_accuracy(model, tokenizer, source, tasks, recipe.max_new_tokens)
    assert 0.2 <= accuracy <= 0.5 and well_formed >= 0.95
