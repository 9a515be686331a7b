"""What the verl adapter does, against verl itself: `python scripts/checks/check_verl.py --python VERL_PYTHON`.

It runs on a CPU and needs no engine, but what verl's trainer imports:
`pip install torch verl uvicorn fastapi pillow cachetools`.
Checks that importing verl with VERL_USE_EXTERNAL_MODULES=gxpo.adapters.verl registers the methods, that estimators and
losses that both have agree on random batches, and what the trainer's own function gives. Exit status 1 where a check
fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
CLOSE = 1e-5
# verl's estimator -> the method and the overrides with its constants
ESTIMATORS = {
    "grpo": ("grpo@verl", {}),
    "grpo_vectorized": ("grpo", {"credit.singleton": "zero"}),
    "rloo": ("rloo@verl", {}),
    "opo": ("opo", {}),
}
WIDE = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
NO_LOW = {"clip_ratio_low": 1.0, "clip_ratio_high": 0.28}  # CISPO without its lower bound
# verl's loss -> [(method, overrides, verl's settings, loss_agg_mode, micro-batches)]
LOSSES: dict[str, list[tuple[str, dict[str, Any], dict[str, Any], str, int]]] = {
    "vanilla": [
        ("dapo@verl", {}, {**WIDE, "clip_ratio_c": 10.0}, "token-mean", 2),
        ("grpo@verl", {"objective.ratio_max": 1.5}, {"clip_ratio_c": 1.5}, "token-mean", 2),
        ("grpo", {"objective.surrogate": "dual_clip"}, {}, "seq-mean-token-mean", 2),
        ("dr_grpo@verl", {}, {"loss_scale_factor": 6}, "seq-mean-token-sum-norm", 2),
        ("dr_grpo@verl", {"objective.horizon": 1.0}, {}, "seq-mean-token-sum", 2),
    ],
    "gspo": [("gspo@verl", {}, {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}, "seq-mean-token-mean", 2)],
    "geo_mean": [("gmpo@verl", {}, {}, "seq-mean-token-mean", 1)],  # a mean of each micro-batch
    "cispo": [("cispo@verl", {}, {}, "token-mean", 2), ("cispo", {}, NO_LOW, "token-mean", 2)],
    "gpg": [("gpg", {"objective.aggregate": "token_mean"}, {}, "token-mean", 2)],
    "sapo": [("sapo_gate@verl", {}, {}, "seq-mean-token-mean", 2)],
    "dppo_tv": [("dppo_divergence@verl", {}, {}, "token-mean", 2)],
    "dppo_kl": [
        (
            "dppo_divergence@verl",
            {"objective.divergence": "kl", "objective.divergence_low": 0.05, "objective.divergence_high": 0.05},
            {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05},
            "token-mean",
            2,
        )
    ],
}
# verl's losses that are not said in keys
LEFT_OUT = {
    "dro": "a penalty on the squared log-ratio beside the term: verl's losses have one",
    "clip_cov": "a random choice of tokens of each micro-batch",
    "kl_cov": "the largest covariances of each micro-batch",
    "bypass_mode": "not a loss of its own",
}


def batch(seed: int, sizes: tuple[int, ...] = (4, 3, 4, 5), width: int = 9) -> tuple[Any, Any, Any]:
    """Draw rewards on the last token, mask, uid."""
    import numpy as np

    generator = torch.Generator().manual_seed(seed)
    uid = np.array([f"q{g}" for g, n in enumerate(sizes) for _ in range(n)], dtype=object)
    uid = uid[torch.randperm(len(uid), generator=generator).numpy()]
    lengths = torch.randint(1, width + 1, (len(uid),), generator=generator)
    mask = (torch.arange(width) < lengths[:, None]).float()
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(len(uid)), lengths - 1] = torch.randint(0, 5, (len(uid),), generator=generator).float() / 4
    return rewards, mask, uid


def checks() -> bool:
    start_time = time.perf_counter()
    import verl
    from verl.trainer.ppo import core_algos as core

    seconds, good = time.perf_counter() - start_time, True
    from gxpo.adapters import verl as adapter
    from gxpo.methods import METHODS

    def say(name: str, right: bool, figures: str) -> None:
        nonlocal good
        good &= right
        print(f"{'ok  ' if right else 'FAIL'} {name}: {figures}", flush=True)

    names = [n for n in core.ADV_ESTIMATOR_REGISTRY if n.startswith("gxpo/")]
    losses = [n for n in core.POLICY_LOSS_REGISTRY if n.startswith("gxpo/")]
    print(f"verl {verl.__version__} (the adapter was written for {adapter.TESTED}), torch {torch.__version__}")
    counts = f"{len(names)} estimators, {len(losses)} losses of {len(METHODS)} methods; import of both {seconds:.1f} s"
    say("VERL_USE_EXTERNAL_MODULES", min(len(names), len(losses)) > 5, counts)
    for name, (method, overrides) in ESTIMATORS.items():
        gap = 0.0
        for seed in range(20):
            sizes = (4, 1, 4, 5) if method.endswith("@verl") else (4, 3, 4, 5)
            rewards, mask, uid = batch(seed, sizes)
            inputs = {"token_level_rewards": rewards.clone(), "response_mask": mask, "index": uid}
            theirs, _ = core.get_adv_estimator_fn(name)(**inputs, config=None)
            ours, _ = adapter.estimator(method, overrides)(rewards, mask, uid)
            gap = max(gap, float((ours - theirs).abs().max()))
        say(f"{name} and gxpo's {method}", gap < CLOSE, f"largest difference {gap:.1e} in 20 batches")
    good &= check_trainer(say)
    for name, rows in LOSSES.items():
        for method, overrides, settings, mode, parts in rows:
            gap, slope = loss_gaps(core, adapter, name, method, overrides, settings, mode, parts)
            composition = " ".join([method, *(f"{k.removeprefix('objective.')}={v}" for k, v in overrides.items())])
            figures = f"value {gap:.1e}, gradient {slope:.1e} relative"
            say(f"loss {name}, {mode}, and gxpo's {composition}", max(gap, slope) < CLOSE, figures)
    unknown = {n for n in core.POLICY_LOSS_REGISTRY if not n.startswith("gxpo/")} - {*LOSSES, *LEFT_OUT}
    say("losses of verl that are compared or left out", not unknown, ", ".join(sorted(unknown)) or "all of them")
    for name, why in LEFT_OUT.items():
        print(f"     {name} is left out: {why}")
    for name in ("gigpo", "tis", "dpo", "v05"):
        print(f"     {name}: {adapter.why_not(name)}")
    return good


def check_trainer(say: Any) -> bool:
    """Check `compute_advantage`, which the trainer calls, with a name of gxpo's."""
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.ray_trainer import compute_advantage

    rewards, mask, uid = batch(3)
    data = DataProto(
        batch=TensorDict({"token_level_rewards": rewards, "response_mask": mask}, batch_size=len(uid)),
        non_tensor_batch={"uid": uid},
    )
    result = compute_advantage(data, "gxpo/ngrpo", config=AlgoConfig(adv_estimator="gxpo/ngrpo"))
    values = result.batch["advantages"]
    scores = rewards.sum(1)
    gap = 0.0
    for i, name in enumerate(uid):
        group = torch.tensor([*[float(s) for s, u in zip(scores, uid, strict=True) if u == name], 1.0])
        expected = (scores[i] - group.mean()) / (group.std() + 1e-6)
        gap = max(gap, float((values[i] - expected * mask[i]).abs().max()))
    say("gxpo/ngrpo through compute_advantage", gap < CLOSE, f"largest difference to its formula {gap:.1e}")
    return gap < CLOSE


def loss_gaps(
    core: Any, adapter: Any, name: str, method: str, overrides: Any, settings: Any, mode: str, parts: int
) -> tuple[float, float]:
    """Return relative differences of value and gradient over an optimiser batch in `parts` micro-batches."""
    from verl.workers.config import ActorConfig, OptimizerConfig

    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(8, 6, generator=generator, dtype=torch.float64)
    new = (old + 0.3 * torch.randn(8, 6, generator=generator, dtype=torch.float64)).clamp_max(-0.01).requires_grad_()
    mask = torch.arange(6) < torch.randint(1, 7, (8, 1), generator=generator)
    advantages = torch.randn(8, 1, generator=generator, dtype=torch.float64) * mask
    config_keys = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, **settings}
    factor = config_keys.pop("loss_scale_factor", None)
    results = []
    for fn in (core.get_policy_loss_fn(name), adapter.policy_loss(method, overrides)):
        config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=4, ppo_mini_batch_size=8,
                             optim=OptimizerConfig(lr=1e-6), **config_keys)  # fmt: skip
        config.global_batch_info.update(
            dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=8, loss_scale_factor=factor
        )
        total = torch.zeros((), dtype=torch.float64)
        for rows in torch.arange(8).chunk(parts):
            value, _ = fn(
                old_log_prob=old[rows], log_prob=new[rows], advantages=advantages[rows], response_mask=mask[rows],
                loss_agg_mode=mode, config=config, rollout_is_weights=None,
            )  # fmt: skip
            total = total + value
        (gradient,) = torch.autograd.grad(total, new)
        results.append((float(total.detach()), gradient))
    (theirs, slope), (ours, gradient) = results
    return abs(ours - theirs) / abs(theirs), float((gradient - slope).norm() / slope.norm())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has verl (default: this one)")
    arguments = parser.parse_args()
    if arguments.python:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        surroundings = {**os.environ, "PYTHONPATH": paths, "VERL_USE_EXTERNAL_MODULES": "gxpo.adapters.verl"}
        return subprocess.run([arguments.python, __file__], env=surroundings).returncode
    os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "gxpo.adapters.verl")
    return 0 if checks() else 1


if __name__ == "__main__":
    sys.exit(main())
