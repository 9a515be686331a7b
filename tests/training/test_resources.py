"""What `auto` was measured to be stands in config.yaml, and nothing is measured again."""

import json
import re

import pytest
import torch

import gxpo
from gxpo.base import runtime
from gxpo.base.errors import ConfigError
from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.choices import Trial
from gxpo.parts.definition import SettingValue
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training import checkpoint, config
from gxpo.training.loop import Trainer

SMALL = {
    "tasks.per_step": 2,
    "rollout.group_size": 3,
    "sampling.max_new_tokens": 4,
    "eval.tasks": 2,
    "learner.dtype": "bfloat16",
}
NATIVE, FLOAT32 = (Trial({"float32": a * 1e-3, "native": b * 1e-3}) for a, b in ((3, 1), (1, 3)))
BLOCKS = Trial({"whole": 2e-3, "blocks": 1e-3})


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """Updates are said to be faster natively, sampling in float32; gives what was tried."""
    tried = []

    def updating(self, sizes, choices):
        if "products" not in choices:
            tried.append("update")
            yield "products", NATIVE
        if "head" not in choices:
            yield "head", BLOCKS

    def sampling(self, sizes, choices):
        if "sampling products" not in choices:
            tried.append(f"sampling {sizes.samples}")
            yield "sampling products", FLOAT32

    monkeypatch.setattr(TorchLearner, "trials", updating)
    monkeypatch.setattr(TorchEngine, "trials", sampling)
    monkeypatch.setenv("GXPO_CACHE", str(tmp_path / "cache"))
    return tried


def make_trainer(out, *, resume=False, notify=lambda line: None, **keys):
    settings = {**SMALL, "model": "tiny:cold", "task": "arithmetic", "trainer.steps": 1}
    settings |= {k.replace("__", "."): v for k, v in keys.items()}
    resolved = config.resolve({k: SettingValue(v, "test") for k, v in settings.items()})
    return Trainer(resolved, out=out, resume=resume, notify=notify)


def products(made):
    """As what matrices are multiplied, in updates and while sampling."""
    return made.learner._readout.decoder.product, made.engine.network.decoder.product


def test_products_are_measured_apart_said_and_used(tmp_path, trials):
    messages = []
    trainer = make_trainer(tmp_path, notify=messages.append)
    assert trials == ["update", "sampling 6"]
    assert products(trainer) == (torch.bfloat16, torch.float32)
    assert [re.sub(r" \(\S+\.json\)", "", line) for line in messages if "measured" in line] == [
        "kernels, measured once and fixed in config.yaml: products: native (3 times the speed of float32), "
        "head: blocks (2 times the speed of whole), sampling products: float32 (3 times the speed of native)"
    ]
    assert trainer.learner._readout.decoder.choices["head"] == "blocks"


def test_the_second_of_two_equal_runs_takes_the_choices_of_the_first(tmp_path, trials):
    first, second = make_trainer(tmp_path / "a"), make_trainer(tmp_path / "b")
    assert trials == ["update", "sampling 6"] and products(first) == products(second)


def test_a_choice_that_is_not_in_the_table_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"learner\.choices: 'head' is whole or blocks, not 'fast'"):
        make_trainer(tmp_path, learner__choices={"head": "fast"})


@pytest.mark.slow
def test_a_resumed_run_and_one_of_the_same_file_measure_nothing(tmp_path, trials):
    run = gxpo.train("tiny:cold", "arithmetic", "grpo", 2, set=SMALL, out=tmp_path / "run")
    text = (run.path / "config.yaml").read_text()
    assert "learner.products: native" in text and "sampling.products: float32" in text and "head: blocks" in text
    state = json.loads((checkpoint.latest(run.path) / "state.json").read_text())
    assert state["choices"] == {"head": "blocks", "products": "native", "sampling products": "float32"}
    trials.clear()
    resumed = gxpo.resume(run.path, steps=3)
    again = Trainer(config.load(run.path / "config.yaml"), out=tmp_path / "again")
    assert trials == []
    assert products(resumed.trainer) == products(again) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("keys", "tried", "used"),
    [
        ({"learner__products": "native"}, [], (torch.bfloat16, torch.bfloat16)),
        ({"learner__products": "float32", "sampling__products": "native"}, [], (torch.float32, torch.bfloat16)),
        ({"learner__products": "float32", "sampling__products": "auto"}, ["sampling 6"], (torch.float32,) * 2),
        ({"sampling__products": "native"}, ["update"], (torch.bfloat16, torch.bfloat16)),
    ],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else None,
)
def test_what_is_stated_is_not_measured(tmp_path, trials, keys, tried, used):
    """One key alone says both, as it did before there were two."""
    trainer = make_trainer(tmp_path, **keys)
    assert trials == tried and products(trainer) == used


def test_a_run_from_before_the_measurement_resumes_as_it_began(tmp_path, trials):
    """Its config.yaml says auto, which is float32 where nothing was measured, and has one key."""
    trainer = make_trainer(tmp_path, resume=True, learner__products="auto")
    assert trials == [] and trainer.settings.learner.products == "auto"
    assert (
        make_trainer(tmp_path, resume=True, learner__products="native").engine.network.decoder.product == torch.bfloat16
    )


def test_all_processes_take_what_the_first_measured(tmp_path, trials, monkeypatch):
    first = {"products": ["float32", "..."], "sampling products": ["native", "..."]}
    monkeypatch.setattr(runtime, "gather", lambda own: [json.dumps(first).encode(), own])
    assert products(make_trainer(tmp_path)) == (torch.float32, torch.bfloat16)


def test_a_model_in_float32_has_no_dtypes_to_choose(tmp_path, monkeypatch):
    monkeypatch.setenv("GXPO_CACHE", str(tmp_path / "cache"))
    messages = []
    trainer = make_trainer(tmp_path, notify=messages.append, learner__dtype="float32")
    (line,) = messages
    assert "sampling prompts 16" in line and "products" not in line
    assert trainer.settings.learner.products == "auto" and trainer.settings.sampling.products is None


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match=r"sampling\.products"):
        config.resolve({"sampling.products": SettingValue("bfloat16", "test")})
