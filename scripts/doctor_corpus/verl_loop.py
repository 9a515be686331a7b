"""A small loop in the order of verl's `fit`: a character model that adds, verl's own advantages, loss, metrics, dumps.

The sampler is a copy of the actor in bfloat16-rounded weights, as an inference engine has it.
"""

from __future__ import annotations

import copy
import os
import random
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import verl_functions as verl
from transformers import LlamaForCausalLM
from verl_policy import decode, forward, pad_batch, render, sample

SCORE = Callable[[str, str, str, int], "float | dict[str, Any]"]  # (prompt, response, ground truth, step)


@dataclass
class Setup:
    """verl's options that the loop knows, and the hooks with which a run is made sick.

    score      the reward function
    rows       (question, ground truth) to train on; validation rows likewise
    reported   changes the sampler's log-probs before they are handed over
    sampler    (step) -> options of sampling at that step, over temperature, top_k, top_p, stop, one_seed
    order      changes the scores of a batch (list) before they are joined to it
    """

    score: SCORE
    rows: list[tuple[str, str]]
    held: list[tuple[str, str]]
    seed: int = 0
    steps: int = 32
    prompts: int = 8
    n: int = 8
    lr: float = 1e-4
    warmup: int = 0
    max_response: int = 56
    temperature: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    clip: float = 0.2
    grad_clip: float = 1.0
    entropy_coeff: float = 0.0
    kl_loss: float | None = None
    kl_in_reward: float | None = None
    norm_std: bool = True
    test_freq: int = 8
    val_n: int = 1
    loggers: tuple[str, ...] = ("file",)
    dumps: bool = True
    val_dumps: bool = False
    config: bool = False
    log_probs: bool = True
    sync_every: int = 1
    unique_uid: bool = False
    reported: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    sampler: Callable[[int], dict[str, Any]] = field(default=lambda step: {})
    order: Callable[[list[Any], random.Random], list[Any]] | None = None
    source: str = "openai/gsm8k"


# ---------------------------------------------------------------- the loop
class Run:
    """`Run(setup, start, folder).fit()` leaves in `folder` what verl leaves."""

    def __init__(self, setup: Setup, start: LlamaForCausalLM, folder: Path) -> None:
        self.s, self.folder, self.draw = setup, folder, random.Random(setup.seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.actor, self.engine = copy.deepcopy(start), copy.deepcopy(start)
        self.reference = copy.deepcopy(start)
        self.sync()
        self.optimiser = torch.optim.AdamW(self.actor.parameters(), lr=setup.lr, weight_decay=0.01, betas=(0.9, 0.999))
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, lambda t: min(1.0, t / setup.warmup) if setup.warmup else 1.0
        )
        self.console = open(folder / "train.log", "w") if {"console", "rounded"} & set(setup.loggers) else None  # noqa: SIM115
        self.file = None
        if "file" in setup.loggers:
            os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "metrics.jsonl")
            self.file = verl.FileLogger("verl_examples", "run")

    def sync(self) -> None:
        """Deliver the weights: the engine keeps them in bfloat16."""
        with torch.no_grad():
            for p, q in zip(self.engine.parameters(), self.actor.parameters(), strict=True):
                p.copy_(q.to(torch.bfloat16).float())

    def log(self, data: dict[str, Any], step: int) -> None:
        if self.file is not None:
            self.file.log(data, step)
        if self.console is not None:
            text = verl.line(data, step)
            if "rounded" in self.s.loggers:  # verl before 0.4 printed three decimals
                text = " - ".join([f"step:{step}", *(f"{k}:{float(v):.3f}" for k, v in data.items())])
            self.console.write(f"\x1b[36m(TaskRunner pid=4817)\x1b[0m {text}\n")

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.write(f"\x1b[36m(TaskRunner pid=4817)\x1b[0m {text}\n")

    def score_texts(self, questions: list[str], texts: list[str], truths: list[str], step: int) -> dict[str, list[Any]]:
        scores = [self.s.score(render(q), r, t, step) for q, r, t in zip(questions, texts, truths, strict=True)]
        rows = [f if isinstance(f, dict) else {"score": f} for f in scores]
        return {k: [r[k] for r in rows] for k in rows[0]}

    # ------------------------------------------------------------ validation
    def validate(self, step: int) -> dict[str, float]:
        s, rows = self.s, [row for row in self.s.held for _ in range(self.s.val_n)]
        sampling = {
            "temperature": 0.0 if s.val_n == 1 else 1.0,
            **{k: v for k, v in s.sampler(step).items() if k == "stop"},
        }
        seeds = [7919 * step + i for i in range(len(rows))]
        samples = sample(self.engine, [q for q, _ in rows], sampling, s.max_response, seeds)
        texts = [decode(r) for r, _ in samples]
        infos = self.score_texts([q for q, _ in rows], texts, [t for _, t in rows], step)
        scores = infos.pop("score")
        infos = {"reward": scores, **infos}
        if s.val_dumps:
            inputs, truths = [render(q) for q, _ in rows], [t for _, t in rows]
            verl.write_generations(inputs, texts, truths, scores, infos, self.folder / "validation", step)
        uids = [f"u{i // s.val_n}" for i in range(len(rows))]
        return verl.validation_metrics([s.source] * len(rows), uids, infos)

    # ------------------------------------------------------------ training
    def fit(self) -> list[dict[str, Any]]:
        """Train; return the rows that were logged, whether or not anything was left of them."""
        s, rows = self.s, []
        if s.config:
            (self.folder / ".hydra").mkdir(exist_ok=True)
            (self.folder / ".hydra" / "config.yaml").write_text(configuration(s))
        if s.test_freq > 0:
            first = self.validate(0)
            self.say(f"Initial validation metrics: {first}")
            rows.append(first)
            self.log(first, 0)
        order: list[int] = []
        epoch = 0
        for step in range(1, s.steps + 1):
            if len(order) < s.prompts:
                epoch += bool(step > 1)
                order = self.draw.sample(range(len(s.rows)), len(s.rows))
            indices, order = order[: s.prompts], order[s.prompts :]
            row = self.step(step, [s.rows[i] for i in indices], epoch)
            rows.append(row)
            self.log(row, step)
        if self.file is not None:
            self.file.finish()
        if self.console is not None:
            self.console.close()
        return rows

    def step(self, step: int, tasks: list[tuple[str, str]], epoch: int) -> dict[str, Any]:
        s, start_time, timing, data = self.s, time.time(), {}, {}
        task_rows = [t for t in tasks for _ in range(s.n)]
        questions, truths = [q for q, _ in task_rows], [t for _, t in task_rows]
        sampling = {"temperature": s.temperature, **s.sampler(step)}
        each = (lambda i: i // s.n) if sampling.get("one_seed") else (lambda i: i)
        seeds = [(s.seed * 1000003 + step) * 4096 + each(i) for i in range(len(task_rows))]
        samples = sample(self.engine, questions, sampling, s.max_response, seeds)
        timing["gen"] = time.time() - start_time
        left, right, attention, mask = pad_batch(questions, [r for r, _ in samples], s.max_response)
        rollout_logprob = torch.zeros(right.shape)
        for i, (_, logp) in enumerate(samples):
            rollout_logprob[i, : len(logp)] = torch.tensor(logp)
        if s.reported is not None:
            rollout_logprob = s.reported(rollout_logprob, mask)
        texts = [decode(r) for r, _ in samples]
        infos = self.score_texts(questions, texts, truths, step)
        if s.order is not None:
            infos = {k: s.order(v, random.Random(f"{s.seed}/{step}")) for k, v in infos.items()}
        scores = infos.pop("score")
        tokens = torch.zeros(right.shape)
        tokens[torch.arange(len(samples)), mask.sum(-1) - 1] = torch.tensor(scores, dtype=torch.float32)
        uid = [
            str(uuid.UUID(int=self.draw.getrandbits(128))) for _ in range(len(samples) if s.unique_uid else len(tasks))
        ]
        index = np.array(uid if s.unique_uid else [u for u in uid for _ in range(s.n)], dtype=object)

        lap = time.time()
        with torch.no_grad():
            old, entropy = forward(self.actor, left, right, attention, s.temperature)
        data["actor/entropy"] = verl.core.agg_loss(entropy, mask, "token-mean").item()
        data["perf/mfu/actor_infer"] = 0.0
        timing["old_log_prob"] = time.time() - lap
        tensors = {
            "prompts": left, "responses": right, "attention_mask": attention, "response_mask": mask,
            "old_log_probs": old, "token_level_scores": tokens, "token_level_rewards": tokens,
        }  # fmt: skip
        batch = verl.DataProto(tensors, {"uid": index})
        batch.meta_info["global_token_num"] = attention.sum(-1).tolist()
        if s.log_probs:
            batch.batch["rollout_log_probs"] = rollout_logprob
            data.update(verl.debug.calculate_debug_metrics(batch))
        if s.kl_loss is not None or s.kl_in_reward is not None:
            with torch.no_grad():
                batch.batch["ref_log_prob"] = forward(self.reference, left, right, attention, s.temperature)[0]
        if s.kl_in_reward is not None:
            control = verl.core.FixedKLController(s.kl_in_reward)
            batch, kl_metrics = verl.apply_kl_penalty(batch, control, kl_penalty="kl")
            data.update(kl_metrics)
        if s.log_probs:
            batch, gap_metrics = verl.correction.compute_rollout_correction_and_add_to_batch(batch, {})
            data.update(gap_metrics)
        advantages, returns = verl.core.compute_grpo_outcome_advantage(
            batch.batch["token_level_rewards"].clone(), mask, index, norm_adv_by_std_in_grpo=s.norm_std
        )
        batch.batch["advantages"], batch.batch["returns"] = advantages, returns
        lap = time.time()
        data.update(self.update(batch, left, right, attention, mask))
        timing["update_actor"] = time.time() - lap
        if s.sync_every and step % s.sync_every == 0:
            self.sync()
        if s.dumps:
            inputs = [render(q) for q in questions]
            verl.write_generations(inputs, texts, truths, scores, infos, self.folder / "rollouts", step)
        timing["step"] = time.time() - start_time
        if s.test_freq > 0 and (step % s.test_freq == 0 or step == s.steps):
            lap = time.time()
            data.update(self.validate(step))
            timing["testing"] = time.time() - lap
        data.update({"training/global_step": step, "training/epoch": epoch})
        data.update(verl.metrics.compute_data_metrics(batch=batch, use_critic=False))
        data.update(verl.metrics.compute_timing_metrics(batch=batch, timing_raw=timing))
        data.update(verl.metrics.compute_throughout_metrics(batch=batch, timing_raw=timing, n_gpus=1))
        return data

    def update(self, batch: Any, left: Any, right: Any, attention: Any, mask: Any) -> dict[str, float]:
        """Update the actor: epochs of mini-batches, verl's loss, its metrics averaged over them."""
        s, b = self.s, batch.batch
        config = SimpleNamespace(
            clip_ratio=s.clip, clip_ratio_low=None, clip_ratio_high=None, global_batch_info={},
            get=lambda name, default=None: default,
        )  # fmt: skip
        rows: dict[str, list[float]] = {}
        size = len(right) // s.minibatches
        for _ in range(s.epochs):
            order = torch.randperm(len(right), generator=torch.Generator().manual_seed(self.draw.getrandbits(30)))
            for part in order.split(size):
                logp, entropy = forward(self.actor, left[part], right[part], attention[part], s.temperature)
                loss, metrics = verl.core.compute_policy_loss_vanilla(
                    b["old_log_probs"][part], logp, b["advantages"][part], mask[part], "token-mean", config
                )
                metrics = {**metrics, "actor/pg_loss": loss.item()}
                if s.entropy_coeff:
                    loss = loss - s.entropy_coeff * verl.core.agg_loss(entropy, mask[part], "token-mean")
                if s.kl_loss is not None:
                    kl = verl.core.kl_penalty(logp, b["ref_log_prob"][part], "low_var_kl")
                    kl = verl.core.agg_loss(kl, mask[part], "token-mean")
                    loss = loss + s.kl_loss * kl
                    metrics |= {"actor/kl_loss": kl.item(), "actor/kl_coef": s.kl_loss}
                self.optimiser.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(self.actor.parameters(), s.grad_clip)
                if torch.isfinite(norm):  # verl's FSDP engine skips the step otherwise
                    self.optimiser.step()
                metrics |= {"actor/loss": loss.item(), "actor/grad_norm": float(norm)}
                for k, v in metrics.items():
                    rows.setdefault(k, []).append(v)
        lr = self.schedule.get_last_lr()[0]
        self.schedule.step()
        return {**{k: float(v) for k, v in verl.reduce_metrics(dict(rows)).items()}, "actor/lr": lr}


def configuration(s: Setup) -> str:
    """Return what hydra writes, as far as the loop has such options."""
    text = f"""actor_rollout_ref:
  actor:
    ppo_mini_batch_size: {s.prompts // s.minibatches}
    ppo_epochs: {s.epochs}
    clip_ratio: {s.clip}
    grad_clip: {s.grad_clip}
    entropy_coeff: {s.entropy_coeff}
    use_kl_loss: {str(s.kl_loss is not None).lower()}
    kl_loss_coef: {s.kl_loss or 0.001}
    kl_loss_type: low_var_kl
    loss_agg_mode: token-mean
    optim:
      lr: {s.lr}
      lr_warmup_steps: {s.warmup}
      weight_decay: 0.01
  rollout:
    name: vllm
    temperature: {s.temperature}
    top_k: -1
    top_p: 1.0
    n: {s.n}
    dtype: bfloat16
    calculate_log_probs: {str(s.log_probs).lower()}
    val_kwargs:
      n: {s.val_n}
      do_sample: {str(s.val_n > 1).lower()}
algorithm:
  adv_estimator: grpo
  norm_adv_by_std_in_grpo: {str(s.norm_std).lower()}
  use_kl_in_reward: {str(s.kl_in_reward is not None).lower()}
data:
  train_batch_size: {s.prompts}
  max_response_length: {s.max_response}
trainer:
  total_training_steps: {s.steps}
  test_freq: {s.test_freq}
"""
    # hydra writes floats with a point, which YAML 1.1 asks for: 1.0e-06
    return re.sub(r": (\d+)e-", r": \1.0e-", text)
