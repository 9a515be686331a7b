"""gxpo's GRPOTrainer over the stand-in for TRL's, and reward functions."""

from tests.adapters import fake_trl
from tests.adapters.fake_trl import Config, Pairs

from gxpo.adapters import trl as adapter
from gxpo.adapters import trl_config

trl_config.note_arguments(Config)  # as for TRL's own, once its trainer is in use

PROMPTS = [[3, 4], [5], [6, 7, 8], [9, 2]]


class Trainer(adapter.WithMethod, fake_trl.GRPOTrainer):
    """What `gxpo.adapters.trl.GRPOTrainer` is, over the stand-in."""


def by_sum(prompts, completion_ids):
    return [sum(ids) % 5 / 4 for ids in completion_ids]


def never(prompts, completion_ids):
    return [0.0 for _ in completion_ids]


def by_length(prompts, completion_ids):
    return [len(ids) / 5 for ids in completion_ids]


def some(prompts, completion_ids):
    return [None if sum(ids) % 3 == 0 else sum(ids) % 5 / 4 for ids in completion_ids]


def make_trainer(method="grpo@trl", reward=by_sum, *, micro=16, overrides=None, success_at=None, out=None, tools=False,
            **settings):  # fmt: skip
    parts = 16 // micro
    settings = {"gradient_accumulation_steps": parts, "steps_per_generation": parts, **settings}
    config = Config(per_device_train_batch_size=micro, **settings)
    return Trainer(
        Pairs(), reward, config, method=method, overrides=overrides, success_at=success_at, out=out, tools=tools
    )
