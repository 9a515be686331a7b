"""Value heads, probes, reward models, unfinished rollouts, phases in whole runs: they train, and a resumed run is the
run that was never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.thorough import some

import gxpo
from gxpo.training import checkpoint

KEYS: dict[str, Any] = {
    "tasks.per_step": 4,
    "rollout.group_size": 3,
    "sampling.max_new_tokens": 6,
    "eval.every": 0,
    "eval.tasks": 2,
    "trainer.checkpoint_every": 1,
    "trainer.rollouts_every": 1,
    "learner.tokens_per_microbatch": 1024,
}
OWN: dict[str, dict[str, Any]] = {
    "bupo": {"signal.layer_logprob.steps": 2, "update.epochs": 2},
    "sdpo_self": {"update.minibatches": 2},
    "srpo_routing": {},
    "gvpo": {},
    "mdpo": {},
    "gae": {"credit.lam": 0.9, "objective.add.value.clip": 0.2, "update.minibatches": 2},
    "t_ppo": {"learner.value_lr": 10.0},
    "poise": {"signal.value_probe.min_rows": 12, "signal.value_probe.buffer": 20},
    "oprl": {"signal.implicit_reward.lr": 1e-3},
    "spa_rl": {"signal.progress_estimator.min_rows": 12, "signal.progress_estimator.buffer": 20},
    "sfpo": {"update.window": 2, "update.threshold": -9.0},  # plain steps from the third on
    "riskpo": {"credit.size": 2, "credit.add.length_weighted": "length_weighted"},  # a summand that remembers
    "himac": {"rollout.blueprints": 3, "rollout.plan_tokens": 3},
}
# what a checkpoint must hold beside the policy
HELD = {
    "sdpo_self": "signal/self_teacher/",
    "srpo_routing": "signal/self_teacher/",
    "gae": "value",
    "t_ppo": "value",
    "poise": "signal/value_probe/",
    "oprl": "signal/implicit_reward/",
    "spa_rl": "signal/progress_estimator/",
}


class Stopped(Exception):
    pass


REWARDS = Path(__file__).parent / "parity_reward.py"
REWARD = f"{REWARDS}:parity"


def train(method: str, out: Path, stop_at: int | None = None) -> Any:
    def watch(row: dict[str, Any]) -> None:
        if row["step"] == stop_at and "reward_mean" in row:
            raise Stopped

    return gxpo.train("tiny:cold", "arithmetic", method, 3, REWARD, out=out, watch=watch, set=KEYS | OWN[method])


def lines(out: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time_", "memory_"))} for row in rows]


# in `make slow`: a head, a probe, a cut rollout, a memory of the credit, phases
@pytest.mark.slow
@pytest.mark.parametrize("method", some(sorted(OWN), ("gae", "poise", "t_ppo", "riskpo", "himac", "sfpo")))
def test_a_resumed_run_is_the_run_never_stopped(method: str, tmp_path: Path) -> None:
    train(method, tmp_path / "whole")
    with pytest.raises(Stopped):
        train(method, tmp_path / "stopped", stop_at=2)
    gxpo.resume(tmp_path / "stopped")
    one, other = (checkpoint.load(checkpoint.latest(tmp_path / name)) for name in ("whole", "stopped"))
    assert lines(tmp_path / "whole") == lines(tmp_path / "stopped")
    assert one[0].keys() == other[0].keys() and all(torch.equal(one[0][k], other[0][k]) for k in one[0])
    assert one[1] == other[1]
    assert any(HELD.get(method, "parameter") in name for name in one[0])
    rollouts = sorted((tmp_path / "whole" / "rollouts").iterdir())
    assert rollouts and all(p.read_text() == (tmp_path / "stopped" / "rollouts" / p.name).read_text() for p in rollouts)


@pytest.mark.slow
def test_runs_with_extra_policies_or_heads_can_be_init_from(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from gxpo.cli.app import app

    run("poise", tmp_path / "poise", 1)
    actual = CliRunner().invoke(app, ["eval", str(tmp_path / "poise"), "--tasks", "3", "--json"])
    assert actual.exit_code == 0 and json.loads(actual.stdout)["eval_tasks"] == 3
    run("gae", tmp_path / "gae", 1, **{"learner.value_lr": 9.0})
    first = gxpo.resume(tmp_path / "gae").trainer.learner.snapshot()
    assert float(first["value_head.bias"]) != 0
    for method, head in (("grpo", False), ("gae", True)):  # a head stays behind, or comes along
        keys = {"init_from": str(tmp_path / "gae"), "optim.lr": 1e-12}
        rows = gxpo.train(
            "tiny:cold", "arithmetic", method, 1, REWARD, out=tmp_path / f"from_gae_{method}", set=KEYS | keys
        )
        then = rows.trainer.learner.snapshot()
        assert ("value_head.bias" in then) == head
        assert all(torch.allclose(then[name], first[name], atol=1e-9) for name in then)
    fresh = {"init_from": str(tmp_path / "from_gae_grpo"), "optim.lr": 1e-12}  # no head there: it begins at 0
    learner = gxpo.train(
        "tiny:cold", "arithmetic", "gae", 1, REWARD, out=tmp_path / "g", set=KEYS | fresh
    ).trainer.learner
    assert abs(float(learner.snapshot()["value_head.bias"])) < 1e-9


def run(method: str, out: Path, steps: int, reward: str = REWARD, **keys: Any) -> list[dict[str, Any]]:
    keys = KEYS | {"trainer.rollouts_every": 0, "trainer.checkpoint_every": 9} | keys
    return gxpo.train("tiny:cold", "arithmetic", method, steps, reward, out=out, set=keys).metrics


@pytest.mark.slow
def test_the_value_head_learns(tmp_path: Path) -> None:
    """Every rollout pays 1: with a head that may move fast the value comes to 1, and with it the credit to nothing."""
    keys = {"optim.lr": 1e-4, "learner.value_lr": 20.0}
    rows = run("gae", tmp_path, 6, f"{REWARDS}:always", **keys)
    assert rows[0]["value_loss"] == pytest.approx(0.5, abs=0.1)
    assert rows[-1]["value_loss"] < 0.1 * rows[0]["value_loss"]


@pytest.mark.slow
def test_unfinished_rollouts_go_on_and_are_scored_once_they_end(tmp_path: Path) -> None:
    """Windows of two tokens: the first step has 12 rollouts, none longer than 2; later steps have those that go on."""
    rows = run("t_ppo", tmp_path, 3, **{"rollout.windows": 3})
    assert rows[0]["trajectories"] == 12 < rows[1]["trajectories"]
    assert rows[0]["length_mean"] <= 2 < rows[2]["length_mean"] <= 6
    assert rows[0]["truncated_rate"] > 0 and rows[1]["staleness_max"] >= 1
    assert rows[2]["success_rate"] is not None


def test_the_probe_takes_over_when_it_has_seen_enough(tmp_path: Path) -> None:
    rows = run("poise", tmp_path, 3, **{"signal.value_probe.min_rows": 20})
    assert [row["probe_used"] for row in rows] == [0.0, 0.0, 1.0]
    assert [row["probe_rows"] for row in rows] == [0.0, 12.0, 24.0]
    assert rows[0]["baseline_error"] == rows[0]["group_mean_error"]


@pytest.mark.slow
def test_the_reward_model_is_trained_beside_the_policy(tmp_path: Path) -> None:
    """In the first step it is the policy, so the step is GRPO's; afterwards it is not."""
    rows = run("oprl", tmp_path / "oprl", 2, **{"signal.implicit_reward.lr": 1e-3})
    plain = run("grpo", tmp_path / "grpo", 2)
    assert (
        rows[0]["weights_fingerprint"] == plain[0]["weights_fingerprint"]
        and rows[1]["weights_fingerprint"] != plain[1]["weights_fingerprint"]
    )
    assert rows[0]["prm_loss"] == pytest.approx(0.693147, abs=1e-5)
    assert rows[0]["prm_accuracy"] == pytest.approx(0.5)
