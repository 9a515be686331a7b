"""Every setting that changes a step, in whole runs of two steps."""

import json

import pytest
import torch
from tests.thorough import SLOW, some

import gxpo

SMALL = {
    "tasks.per_step": 4,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 6,
    "eval.tasks": 6,
    "trainer.rollouts_every": 1,
}
REWARD = (
    "def parity(completion):\n    return {'correct': float(sum(map(ord, completion)) % 2), 'length': len(completion)}\n"
)


@pytest.fixture(scope="module")
def reward(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(REWARD)
    return str(path)


def train(tmp_path, reward, steps=2, **keys):
    settings = {**SMALL, **{k.replace("__", "."): v for k, v in keys.items()}}
    method = settings.pop("method", "grpo")
    return gxpo.train("tiny:cold", "arithmetic", method, steps, f"{reward}:parity", out=tmp_path / "run", set=settings)


SETTINGS = [
    {"objective.kl.coef": 0.1, "objective.kl.estimator": "k2"},
    {"objective.kl.coef": 0.1, "objective.kl.place": "reward", "objective.kl.estimator": "k1"},
    {"objective.entropy.coef": 0.01},
    {"sampling.temperature": 0.7, "sampling.top_k": 10, "update.epochs": 2},
    {"sampling.top_p": 0.8},
    {"sampling.stop": ["1", "ab"]},
    {"learner.lora_rank": 4, "objective.kl.coef": 0.1},
    {"learner.layout": "flat"},
    {"learner.dtype": "bfloat16", "learner.products": "float32"},
    {"learner.dtype": "bfloat16", "learner.products": "native"},
    {"learner.tokens_per_microbatch": 16, "method": "gspo"},
    {"optim.schedule": "cosine", "optim.warmup_steps": 1, "update.minibatches": 2},
    {"method": "tis", "update.minibatches": 4, "update.epochs": 2},
    {"method": "dr_grpo+gspo"},
]


@pytest.mark.parametrize("keys", some(SETTINGS, (SETTINGS[0], SETTINGS[-2]), SLOW), ids=lambda keys: ",".join(keys))
def test_a_run_with_this_setting_moves_and_stays_finite(tmp_path, reward, keys):
    rows = train(tmp_path, reward, **keys).metrics
    assert [r["step"] for r in rows] == [1, 2]
    assert rows[0]["weights_fingerprint"] != rows[1]["weights_fingerprint"]
    assert all(r["grad_norm"] > 0 and r["sampler_gap"] < 0.1 for r in rows)
    if "objective.kl.coef" in keys and "objective.kl.place" not in keys:
        assert rows[0]["kl"] == pytest.approx(0, abs=1e-6) and rows[1]["kl"] > 0  # the reference is the start


@pytest.mark.slow
def test_on_policy_is_said_and_clips_nothing(tmp_path, reward):
    """T33: with one update a step the ratio is exactly 1; with more, later updates are off policy."""
    once = train(tmp_path / "once", reward).metrics
    assert all(r["on_policy"] == 1 and r["ratio_max"] == 1 and r["clip_fraction"] == 0 for r in once)
    thrice = train(tmp_path / "thrice", reward, steps=1, **{"update.epochs": 3, "optim.lr": 0.01}).metrics
    assert thrice[0]["on_policy"] == pytest.approx(1 / 3) and thrice[0]["approx_kl"] > 0


def test_rollouts_carry_the_version_that_sampled_them(tmp_path, reward):
    """T34: step n is sampled by the policy after n - 1 steps."""
    run = train(tmp_path, reward)
    for step in (1, 2):
        lines = (run.path / "rollouts" / f"step-{step:06d}.jsonl").read_text().splitlines()
        assert {turn["policy_version"] for line in lines for turn in json.loads(line)["turns"]} == {step - 1}


def test_a_sampler_with_stale_weights_raises_the_alarm(tmp_path, reward, monkeypatch):
    """T34: the engine samples from a copy of the weights that the learner has left behind."""
    import copy

    from gxpo.training import setup

    class Stale(setup.TorchEngine):
        def __init__(self, model, *arguments, **named):
            changed = copy.deepcopy(model)
            with torch.no_grad():
                changed.lm_head.weight.mul_(3.0)
            super().__init__(changed, *arguments, **named)

    monkeypatch.setattr(setup, "TorchEngine", Stale)
    with pytest.warns(UserWarning, match="log-probs of a token differ by"):
        run = train(tmp_path, reward, steps=1)
    assert run.metrics[0]["sampler_gap"] > 0.1


@pytest.mark.slow
def test_shuffled_rewards_keep_the_batch_s_mean(tmp_path, reward):
    plain = train(tmp_path / "plain", reward, steps=1)
    shuffled = train(tmp_path / "shuffled", reward, steps=1, scoring__shuffle=True)
    assert plain.metrics[0]["reward_mean"] == shuffled.metrics[0]["reward_mean"]
    assert plain.metrics[0]["weights_fingerprint"] != shuffled.metrics[0]["weights_fingerprint"]
    outcomes = [[r["reward"] for r in run.samples] for run in (plain, shuffled)]
    assert sorted(outcomes[0]) == sorted(outcomes[1]) and outcomes[0] != outcomes[1]


@pytest.mark.slow
def test_shaping_reward_is_added_and_a_wrong_shape_is_refused(tmp_path, reward):
    half = gxpo.method("grpo", {"reward.add.half": lambda forest: {"half": 0.5 * torch.ones(forest.n_trajectories)}})
    run = gxpo.train("tiny:cold", "arithmetic", half, 1, f"{reward}:parity", out=tmp_path / "half", set=SMALL)
    assert all(r["reward"] == r["rewards"]["correct"] + r["rewards"]["length"] + 0.5 for r in run.samples)
    bad = gxpo.method("grpo", {"reward.add.bad": lambda forest: {"bad": torch.ones(3)}})
    with pytest.raises(gxpo.errors.GxpoError, match=r"reward.add.bad \(test_step.py line \d+, in .*gave shape \(3,\)"):
        gxpo.train("tiny:cold", "arithmetic", bad, 1, f"{reward}:parity", out=tmp_path / "bad", set=SMALL)
    known_method = gxpo.method(
        "grpo", {"reward.add.own": lambda forest: {"correct": torch.ones(forest.n_trajectories)}}
    )
    with pytest.raises(gxpo.errors.GxpoError, match="'correct' has the name of a component of the task's"):
        gxpo.train("tiny:cold", "arithmetic", known_method, 1, f"{reward}:parity", out=tmp_path / "known", set=SMALL)


def test_rewards_are_weighted_by_name(tmp_path, reward):
    """T26, through a run's settings."""
    weights = {f"{reward}:parity": 0.0, "length": 0.5, "correct": 2.0}
    run = gxpo.train("tiny:cold", "arithmetic", "grpo", 1, weights, out=tmp_path / "run", set=SMALL)
    for record in run.samples:
        assert record["reward"] == 2 * record["rewards"]["correct"] + 0.5 * record["rewards"]["length"]


@pytest.mark.slow
def test_files_of_tasks_scored_by_math_verify(tmp_path):
    lines = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = gxpo.train("tiny:cold", str(tmp_path / "sums.jsonl"), "grpo", 1, out=tmp_path / "run",
                     set={**SMALL, "eval.tasks": 3})  # fmt: skip
    assert run.metrics[0]["unscored"] == 0 and run.metrics[0]["reward_mean"] is not None
    for record in run.samples:  # with the answer, by which a verifier can be checked afterwards
        assert int(record["info"]["answer"]) == sum(map(int, record["prompt_text"].rstrip("=").split("+")))


@pytest.mark.slow
def test_a_generator_of_reasoning_gym(tmp_path):
    run = gxpo.train("tiny:cold", "reasoning_gym:gcd", "grpo", 1, out=tmp_path / "run", set={**SMALL, "eval.tasks": 3})
    assert run.metrics[0]["unscored"] == 0 and "reward_correct" in run.metrics[0]


@pytest.mark.slow
def test_a_saved_model_is_loaded_by_transformers(tmp_path, reward):
    from transformers import AutoModelForCausalLM

    run = train(tmp_path, reward)
    run.save_pretrained(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    parameters = dict(run.trainer.learner.model.named_parameters())
    assert all(torch.equal(p, parameters[name]) for name, p in loaded.named_parameters())
    again = gxpo.train(
        str(tmp_path / "model"), "arithmetic", "grpo", 1, f"{reward}:parity", out=tmp_path / "on", set=SMALL
    )
    assert again.metrics[0]["grad_norm"] > 0
