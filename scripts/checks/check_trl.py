"""What the TRL adapter does, against TRL itself: `python scripts/checks/check_trl.py --python TRL_PYTHON`.

On a small model: three optimiser steps of TRL's GRPOTrainer and of the adapter under the same settings, losses,
gradients and all that TRL logs compared, for every loss type of TRL; the gradient of one generation batch cut into
micro-batches in several ways; whether rows know their group; the same beside a second process; steps of methods that
grow their rollouts themselves, against gxpo's own learner. Exit status 1 where a check fails.

    python scripts/checks/check_trl.py --python TRL_PYTHON --only cispo sapo   # these cases alone
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]
CLOSE = 1e-5  # relative, of losses and of gradients
ROWS, GROUP, NEW, STEPS = 16, 4, 6, 3
CLOCK = ("time", "runtime", "per_second")  # in names of figures that depend on the machine

MOVED = {"num_iterations": 2, "learning_rate": 0.5}  # a second pass over the rollouts, after steps that are felt
NUDGED = {"num_iterations": 2, "learning_rate": 0.002}
# name -> (micro-batch, TRL's settings and perhaps "trainer", the adapter's method, its overrides, settings of both)
CASES: Mapping[str, tuple[int, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = {
    "default": (16, {}, "grpo@trl", {}, {}),
    "accumulated": (4, {}, "grpo@trl", {}, {}),
    "twice": (8, {}, "grpo@trl", {}, {"num_iterations": 2, "learning_rate": 0.5}),
    "sequence mean": (16, {"loss_type": "grpo"}, "grpo@trl", {"objective.aggregate": "sequence_mean"}, {}),
    "dr_grpo": (8, {"loss_type": "dr_grpo", "scale_rewards": "none"}, "dr_grpo", {}, {}),
    "sequence ratio": (
        8,
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        "grpo+gspo",
        {"credit.eps": 1e-4},
        {"num_iterations": 2, "learning_rate": 0.01},
    ),
    "reference": (
        8,
        {"use_bias_correction_kl": False},
        "grpo@trl",
        {"objective.kl.coef": 0.1},
        {"num_iterations": 2, "learning_rate": 0.5, "beta": 0.1},
    ),
    "bnpo": (16, {"loss_type": "bnpo"}, "grpo@trl", {}, MOVED),
    "clip higher": (8, {"epsilon_high": 0.28}, "grpo@trl", {"objective.clip_high": 0.28}, MOVED),
    "delta": (8, {"delta": 1.5}, "grpo@trl", {"objective.surrogate": "dual_clip", "objective.ratio_max": 1.5}, MOVED),
    "cispo": (8, {"loss_type": "cispo"}, "cispo@trl", {}, MOVED),
    "cispo, epsilon_high 5": (
        8,
        {"loss_type": "cispo", "epsilon_high": 5.0},
        "cispo@trl",
        {"objective.ratio_max": 5.0},
        MOVED,
    ),
    "luspo": (
        8,
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3},
        "luspo@trl",
        {},
        NUDGED,
    ),
    "sapo": (8, {"loss_type": "sapo"}, "sapo_gate@trl", {}, MOVED),
    "vespo": (8, {"loss_type": "vespo"}, "vespo@trl", {}, NUDGED),
    "corrected reference": (
        8,
        {"use_bias_correction_kl": True},
        "grpo@trl",
        {"objective.kl.coef": 0.1, "objective.kl.ratio_weighted": True},
        {**MOVED, "beta": 0.1},
    ),
    "entropy bonus": (16, {"entropy_coef": 0.05}, "grpo@trl", {"objective.entropy.coef": 0.05}, MOVED),
    "entropy bonus, sequence mean": (
        16,
        {"loss_type": "grpo", "entropy_coef": 0.05},
        "grpo@trl",
        {"objective.entropy.coef": 0.05, "objective.aggregate": "sequence_mean"},
        {},
    ),
    "adaptive entropy": (
        16,
        {"use_adaptive_entropy": True, "entropy_coef": 0.02, "entropy_target": 15.0, "entropy_coef_max": 0.028},
        "grpo@trl",
        {
            "objective.entropy.coef": 0.02,
            "objective.entropy.control": "entropy_target",
            "objective.entropy.control.target": 15.0,
            "objective.entropy.control.max_coef": 0.028,
            "objective.entropy.control.off_until_measured": True,
        },
        {"learning_rate": 0.5},
    ),
    "tokens of high entropy": (
        16,
        {"top_entropy_quantile": 0.3},
        "grpo@trl",
        {
            "weight.entropy_quantile": "token_weight",
            "weight.entropy_quantile.score": "entropy",
            "weight.entropy_quantile.curve": "above_quantile",
            "weight.entropy_quantile.share": 0.3,
        },
        {"learning_rate": 0.5},
    ),
    "two rewards": (
        8,
        {"multi_objective_aggregation": "normalize_then_sum"},
        "gdpo_multi@trl",
        {"credit.weights": {"value": 0.7, "length": 0.3}},
        {**MOVED, "reward_weights": [0.7, 0.3]},
    ),
    "luspo, ratios of tokens": (
        8,
        {"loss_type": "luspo"},
        "luspo@trl",
        {"objective.ratio": "token", "objective.clip_low": 0.2, "objective.clip_high": 0.2},
        MOVED,
    ),
    "experimental gmpo": (8, {"trainer": "trl.experimental.gmpo:GMPOTrainer", "epsilon": 0.4}, "gmpo@trl", {}, MOVED),
}


# methods that grow their rollouts themselves -> overrides under which a few steps do so
GROWN: Mapping[str, dict[str, Any]] = {
    "dapo": {}, "aepo": {}, "anytime_brpo": {"rollout.summary_tokens": 2}, 
    "ar3po": {"rollout.stage_size": 2}, "arpo_gui": {}, "at_grpo": {},
    "avatar_tas": {"rollout.min_stored": 2}, "eframe": {"rollout.every": 2}, "erpo": {"rollout.groups": "uniform"},
    "gcpo_gold": {}, "ghpo": {}, "igrpo": {}, "knapsack_rl": {}, "luffy": {}, "mbma": {}, "pav": {}, "r1v2_ssb": {},
    "r3": {}, "remax": {}, "repo_replay": {"rollout.min_stored": 2}, "rose": {},
    "scaf_grpo": {"rollout.warmup_steps": 0}, "spo_segment": {}, "tempsamp_r1": {}, "thor": {}, "tree_grpo": {},
    "tree_opo": {}, "tree_po": {}, "tree_rl": {}, "v0": {}, "vineppo": {}, "vsrm": {"rollout.answer_tokens": 4},
}  # fmt: skip
NEAR = 1e-6  # of losses, absolute


def value(completion_ids: Any, **columns: Any) -> list[float]:
    """Reward that differs within groups and says nothing; eighths, whose means are exact in float32."""
    return [sum(ids) % 8 / 8 for ids in completion_ids]


def length(completion_ids: Any, **columns: Any) -> list[float]:
    """Reward answers by their length."""
    return [len(ids) / 8 for ids in completion_ids]


def save_model(folder: Path) -> str:
    """Save a small model as both trainers load it."""
    from gxpo.models.tiny import tiny_model
    from gxpo.training import models

    tokenizer = models.load("tiny:cold", task="arithmetic", dtype="float32").tokenizer
    small = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    tiny_model(seed=1, num_key_value_heads=2, **small).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def steps_of(trainer: Any, path: str, micro: int, world: int = 1, *, steps: int = STEPS, **options: Any) -> list[Any]:
    """Train on prompts; return (loss, flat gradient, trainer) of each optimiser step. `method` and `overrides` go to
    the trainer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    prompts = ["".join(str((7 * i + 3 * j) % 10) for j in range(2 + i % 4)) for i in range(64)]
    settings = {"output_dir": path + "-out", "max_steps": steps, "learning_rate": 0.1, **options}
    rewards = [value, length] if options.get("reward_weights") else value
    return record_steps(trainer, model, tokenizer, [{"prompt": p} for p in prompts], rewards, micro, world, **settings)


def record_steps(
    trainer: Any,
    model: Any,
    processor: Any,
    rows: list[dict[str, Any]],
    reward: Any,
    micro: int,
    world: int = 1,
    *,
    watch: Any = None,
    **options: Any,
) -> list[Any]:
    """Return (loss, flat gradient, trainer) of each optimiser step of TRL's trainer, or of one made from it.

    rows     of the data set;   micro  rollouts of a micro-batch;   world  processes
    watch    called with the trainer after each micro-batch
    options  settings of GRPOConfig; `method`, `overrides` and those in `extra` go to the trainer
    """  # fmt: skip
    import datasets
    import transformers
    import trl

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    extra = {**options.pop("extra", {}), **{k: options.pop(k) for k in ("method", "overrides") if k in options}}
    parts = ROWS // micro // world
    records: list[Any] = []
    losses: list[float] = []

    class RecordingTrainer(trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            if watch is not None:
                watch(self)
            losses.append(float(loss))
            if len(losses) == parts:
                gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
                records.append((sum(losses), gradient.clone(), self))
                losses.clear()
            return loss

    settings = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": parts,
        "num_generations": GROUP,
        "max_completion_length": NEW,
        "optim": "sgd",  # AdamW makes whole steps of what is next to nothing, rounding included
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "logging_steps": 1,
        "dataloader_pin_memory": False,
        **options,
    }
    instance = RecordingTrainer(
        model=model,
        args=trl.GRPOConfig(**settings),
        train_dataset=datasets.Dataset.from_list(rows),
        reward_funcs=reward,
        processing_class=processor,
        **extra,
    )
    instance.remove_callback(transformers.PrinterCallback)  # it prints every line of the log
    instance.train()
    return records


def against_trl(case: str, path: str, world: int = 1, *, by_settings: bool = False) -> list[dict[str, float]]:
    """Return a row for each optimiser step: relative differences of loss and gradient.

    by_settings  the adapter is given TRL's settings and no method, as by somebody who changed the import alone
    """
    from gxpo.adapters.trl import GRPOTrainer

    micro, theirs, method, overrides, both = CASES[case]
    steps = STEPS * both.get("num_iterations", 1)
    theirs = dict(theirs)
    module, _, name = theirs.pop("trainer", "trl:GRPOTrainer").partition(":")
    our_settings = theirs if by_settings else {"method": method, "overrides": overrides}
    our_steps = steps_of(GRPOTrainer, path, micro, world, steps=steps, **our_settings, **both)
    their_class = getattr(importlib.import_module(module), name)
    their_steps = steps_of(their_class, path, micro, world, steps=steps, **theirs, **both)
    rows = []
    logs = [steps[-1][2].state.log_history for steps in (our_steps, their_steps)]
    gap, name = log_gap(*logs)
    for (loss, gradient, _), (expected, slope, _) in zip(our_steps, their_steps, strict=True):
        rows.append({
            "loss": abs(loss - expected) / max(abs(expected), 0.1),
            "gradient": float((gradient - slope).norm() / slope.norm().clamp_min(0.01)),
            "norm": float(slope.norm()),
            "log": gap,
            "log_name": name,
        })  # fmt: skip
    return rows


def log_gap(our_log: list[dict[str, Any]], their_log: list[dict[str, Any]]) -> tuple[float, str]:
    """Return the largest difference, relative above 1, of what TRL logs, and its name; infinite for a name that is not
    logged."""
    gaps = [(0.0, "")]
    for ours, row in zip(our_log, their_log, strict=True):
        for name, x in row.items():
            if any(word in name for word in CLOCK):
                continue
            y = ours.get(name)
            gap = math.inf if (y is None) != (x is None) else 0.0 if x is None else abs(x - y) / max(1.0, abs(x))
            gaps.append((gap, name))
    return max(gaps)


def micro_batch_gap(path: str, method: str) -> float:
    """Return the largest relative difference of the first gradient between micro-batches of 16, 8, 4 and 2 rows."""
    from gxpo.adapters.trl import GRPOTrainer

    gradients = [steps_of(GRPOTrainer, path, micro, steps=1, method=method)[0][1] for micro in (16, 8, 4, 2)]
    return max(float((x - gradients[0]).norm() / gradients[0].norm()) for x in gradients[1:])


def right(completion_ids: Any, **columns: Any) -> list[float]:
    """Reward a third of all answers."""
    return [float(sum(ids) % 3 == 0) for ids in completion_ids]


def against_learner(method: str, path: str, micro: int, **options: Any) -> dict[str, Any]:
    """Return the largest differences of loss and gradient from gxpo's own learner over the steps, and what was
    sampled."""
    import transformers

    from gxpo.adapters import available
    from gxpo.adapters.trl import GRPOTrainer
    from gxpo.learning.torch import TorchLearner
    from gxpo.training.bound_learner import Batch

    records: list[Any] = []

    class RecordingTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            # the policy at each generation batch, which one optimiser step follows
            records.append({n: x.detach().clone() for n, x in self.model.state_dict().items()})
            output = super()._generate_and_score_completions(inputs)
            records[-1] = records[-1], self._batch_by_mode["train"]
            return output

    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    rows = [{"prompt": f"{7 * i}+{i}=", "answer": str(8 * i), "solution": "1 2 3"} for i in range(7)]
    _, needs = available.needs_in_trl(method)
    settings = {"output_dir": path + "-out", "max_steps": 5, "learning_rate": 0.05, "max_grad_norm": 0.0, **options}
    extra = {"method": method, "overrides": GROWN[method], **needs.arguments}
    steps = record_steps(RecordingTrainer, model, tokenizer, rows, right, micro, **{**settings, "extra": extra})
    gaps = []
    for (loss, gradient, trainer), (state, scored) in zip(steps, records, strict=True):
        policy = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        policy.load_state_dict(state)
        learner = TorchLearner(policy, lr=0.0, kernels="transformers", layout="flat")
        batch = Batch(
            trainer.gxpo_method, scored.forest, scored.credit, scored.weight, scored.signals, None, scored.step
        )
        names = tuple(dict.fromkeys((*batch.method.outputs, "entropy")))
        slope = learner.gradient(batch.forest, batch.loss, names=names, couples=batch.method.couples)
        own_slope = torch.cat([slope[n].flatten() for n, _ in model.named_parameters()])
        gap = float((own_slope - gradient).norm() / own_slope.norm().clamp_min(0.01))
        gaps.append((abs(loss - float(batch.loss(learner.outputs(batch.forest, names)))), gap))
    scored = [s for _, s in records]
    log = [row for row in steps[-1][2].state.log_history if "gxpo/sampled" in row]
    return {
        "loss": max(x for x, _ in gaps),
        "gradient": max(x for _, x in gaps),
        "rows": [s.forest.n_trajectories for s in scored],
        "sampled": [int(row["gxpo/sampled"]) for row in log],
        "origins": sorted({origin for s in scored for origin in s.forest.origin}),
        "mixed": all(
            len({v for g, v in zip(s.forest.group, s.forest.success.tolist(), strict=True) if g == group}) == 2
            for s in scored
            for group in set(s.forest.group)
        ),
    }


def groups_survive(path: str) -> bool:
    """Tell whether each row of each micro-batch is the rollout that the forest says, in the group of its prompt."""
    from gxpo.adapters.trl import ROW, GRPOTrainer

    trainer = steps_of(GRPOTrainer, path, 4, steps=1, method="ngrpo")[0][2]
    forest, prompts, order = trainer._batch_by_mode["train"].forest, {}, []
    for b in trainer._buffered_inputs:
        for i in range(4):
            row = int(b[ROW][i])
            order.append(row)
            if forest.action(row) != b["completion_ids"][i][b["completion_mask"][i].bool()].tolist():
                return False
            prompts.setdefault(forest.group[row], set()).add(tuple(b["prompt_ids"][i].tolist()))
    return order != sorted(order) and len(prompts) == ROWS // GROUP and all(len(p) == 1 for p in prompts.values())


def checks(path: str, only: list[str]) -> bool:
    import trl

    from gxpo.adapters.trl import TESTED

    print(f"TRL {trl.__version__} (the adapter was written for {TESTED}), torch {torch.__version__}")
    good = True

    def say(name: str, right: bool, figures: str) -> None:
        nonlocal good
        good &= right
        print(f"{'ok  ' if right else 'FAIL'} {name}: {figures}", flush=True)

    for method in [name for name in only or GROWN if name in GROWN]:
        for micro, options in ((16, {}), (4, {})) if method == "dapo" else ((8, {}),):
            gaps = against_learner(method, path, micro, **options)
            close = gaps["loss"] < NEAR and gaps["gradient"] < 1e-4 and (gaps["mixed"] or method != "dapo")
            figures = f"loss {gaps['loss']:.1e}, gradient {gaps['gradient']:.1e}, rows {gaps['rows']}"
            say(f"{method}, grown, micro-batches of {micro}", close, f"{figures}, sampled {gaps['sampled']}, "
                f"{'/'.join(gaps['origins'])}{', mixed groups alone' if gaps['mixed'] else ''}")  # fmt: skip
    for case in [name for name in only or CASES if name in CASES]:
        rows = against_trl(case, path)
        loss, gradient = (max(row[k] for row in rows) for k in ("loss", "gradient"))
        figures = f"loss {loss:.1e}, gradient {gradient:.1e} (norm {rows[0]['norm']:.3f})"
        log = rows[0]["log"]
        say(f"{case}, {len(rows)} steps", max(loss, gradient) < CLOSE, figures)
        say(f"{case}, log", log < CLOSE or "trainer" in CASES[case][1], f"{log:.1e} ({rows[0]['log_name']})")
        if "trainer" in CASES[case][1]:
            continue
        worst = max(max(row["loss"], row["gradient"], row["log"]) for row in against_trl(case, path, by_settings=True))
        say(f"{case}, by TRL's own settings", worst < CLOSE, f"loss, gradient and log {worst:.1e}")
    if only:
        return good
    for method in ("grpo", "grpo+gspo", "gvpo"):
        gap = micro_batch_gap(path, method)
        say(f"micro-batches of 16, 8, 4, 2 rows, {method}", gap < CLOSE, f"gradient {gap:.1e}")
    say("rows know their group after the shuffle", groups_survive(path), f"{ROWS} rows in groups of {GROUP}")
    command = [
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        "29537",
        __file__,
        "--two",
        path,
    ]
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    line = next((x for x in process.stdout.splitlines() if x.startswith("two ")), "")
    say("two processes", process.returncode == 0 and bool(line), line or process.stderr[-300:].replace("\n", " "))
    return good


def run_in_two(path: str) -> int:
    """Train the same steps as TRL in one of two processes, with rows on both and groups over both of them."""
    rows = [row for case in ("accumulated", "twice") for row in against_trl(case, path, world=2)]
    worst = max(max(row["loss"], row["gradient"], row["log"]) for row in rows)
    if os.environ["RANK"] == "0":
        figures = f"loss, gradient and log {worst:.1e} (norm {rows[0]['norm']:.3f})"
        print(f"two processes, {len(rows)} steps: {figures}", flush=True)
    return 0 if worst < CLOSE else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="interpreter of an environment that has TRL (default: this one)")
    parser.add_argument(
        "--only", nargs="+", choices=[*CASES, *GROWN], default=[], metavar="CASE", help="these comparisons alone"
    )
    parser.add_argument("--two", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.two:
        return run_in_two(arguments.two)
    if arguments.python:
        paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        surroundings = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        only = ["--only", *arguments.only] if arguments.only else []
        return subprocess.run([arguments.python, __file__, *only], env=surroundings).returncode
    with tempfile.TemporaryDirectory() as folder:
        return 0 if checks(save_model(Path(folder) / "model"), arguments.only) else 1


if __name__ == "__main__":
    sys.exit(main())
