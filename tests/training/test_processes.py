"""Two processes take the steps of one (T37), under torchrun, too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import command_line, started
from tests.thorough import some

import gxpo

CONFIG = """model: tiny:cold
task: arithmetic
tasks: {per_step: 4}
rollout: {group_size: 4}
sampling: {max_new_tokens: 5, temperature: 1.2, top_k: 20}
learner: {dtype: float64, tokens_per_microbatch: 64}
eval: {tasks: 6}
trainer: {steps: 3, checkpoint_every: 0, rollouts_every: 1}
"""
REWARD = "def parity(completion):\n    return {'correct': float(sum(map(ord, completion)) % 2)}\n"


SAMPLER = """tasks.sampler: variance
tasks.sampler.key: digits
tasks.sampler.levels: [1, 2, 3]
"""
EPISODES = """task: frozenlake
tasks: {per_step: 4, options: {style: bare}}
env: {max_turns: 4, context: full}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "launcher"),
    some(
        [("prompts", "forked"), ("prompts", "torchrun"), ("sampled", "forked"), ("episodes", "torchrun")],
        [("prompts", "forked")],
    ),
)
def test_two_processes_equal_one(tmp_path, kind, launcher):
    (tmp_path / "mine.py").write_text(REWARD)
    reward = f"{tmp_path}/mine.py:parity"
    if kind != "episodes":
        text = CONFIG + f"reward: {reward}\n"
        text += SAMPLER if kind == "sampled" else ""
    else:
        text = CONFIG.replace("task: arithmetic\ntasks: {per_step: 4}\n", EPISODES)
        text += f"reward:\n  env: 1.0\n  {reward}: 1.0\n"
    (tmp_path / "run.yaml").write_text(text)

    def words(name):
        return ["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / name)]

    code, _, error = command_line.run(words("one"))
    assert code == 0, error
    if launcher == "forked":
        done = started.ranks(2, ["-m", "gxpo.cli.app", *words("two")])
    else:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(gxpo.__file__).parents[1])}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*torchrun, "-m", "gxpo.cli.app", *words("two")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {
        name: [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    }
    assert [r["step"] for r in rows["two"]] == [1, 2, 3]
    for one, two in zip(rows["one"], rows["two"], strict=True):
        assert one["grad_norm"] > 0
        for key in ("reward_mean", "success_rate", "generated_tokens", "loss", "grad_norm", "entropy", "length_mean"):
            assert two[key] == pytest.approx(one[key], rel=1e-9, abs=1e-12), key
    texts = [
        [
            json.loads(line)["turns"][0]["action_text"]
            for line in (tmp_path / n / "rollouts" / "step-000003.jsonl").read_text().splitlines()
        ]
        for n in ("one", "two")
    ]
    assert texts[0] == texts[1]
