"""A small loop in the order of verl's `fit`: a character model that adds, verl's own advantages, loss, metrics, dumps.

The sampler is a copy of the actor in bfloat16-rounded weights, as an inference engine has it.
"""

from __future__ import annotations

import copy
import os
import random
import re
import sys
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
from transformers import LlamaConfig, LlamaForCausalLM

CHARACTERS = "\n 0123456789+-=?#.,:abcdefghijklmnopqrstuvwxyzWTIPA{}"
PAD, EOS, BOS = 0, 1, 2
IDS = {c: i + 3 for i, c in enumerate(CHARACTERS)}
TEXT = {i: c for c, i in IDS.items()}
SCORE = Callable[[str, str, str, int], "float | dict[str, Any]"]  # (prompt, response, ground truth, step)


def encode(text: str) -> list[int]:
    return [IDS[c] for c in text]


def decode(ids: list[int]) -> str:
    return "".join(TEXT.get(i, "") for i in ids)


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
    steps: int = 45
    prompts: int = 8
    n: int = 8
    lr: float = 3e-4
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
    test_freq: int = 10
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


# ---------------------------------------------------------------- task
def render(question: str) -> str:
    """What is left of the chat template when special tokens are skipped."""
    return f"user\n{question}\nassistant\n"


def question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def solution(a: int, b: int, err: Callable[[int], int] = lambda x: x) -> str:
    """Column by column, as the demonstrations have it."""
    ones = err(a % 10 + b % 10)
    tens = err(a // 10 + b // 10 + ones // 10)
    return f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{'+1' if ones >= 10 else ''}={tens}\n#### {tens}{ones % 10}".replace(
        "#### 0", "#### "
    )


def sums(n: int, seed: int, low: int = 10, high: int = 100) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    seen: dict[tuple[int, int], None] = {}
    while len(seen) < n:
        seen[(draw.randrange(low, high), draw.randrange(low, high))] = None
    return [(question(a, b), str(a + b)) for a, b in seen]


def extracted(response: str) -> str | None:
    found = re.findall(r"#### (\d+)", response)
    return found[-1] if found else None


def gsm8k(prompt: str, response: str, truth: str, step: int) -> dict[str, Any]:
    """verl's strict scoring of GSM8K: 1 for the right number after ####."""
    pred = extracted(response)
    return {"score": float(pred == truth), "acc": float(pred == truth), "pred": pred or ""}


# ---------------------------------------------------------------- model
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(CHARACTERS) + 3, hidden_size=96, intermediate_size=256, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, pad_token_id=PAD,
            bos_token_id=BOS, eos_token_id=EOS,
        )  # fmt: skip
    )


def warm_start(path: Path, low: float, high: float, noise: float) -> LlamaForCausalLM:
    """A policy after supervised training on solutions with errors, whose greedy accuracy lies between `low` and `high`;
    made once."""
    if (path / "config.json").exists():
        return LlamaForCausalLM.from_pretrained(path)
    torch.manual_seed(11)
    draw, policy = random.Random(11), model()
    optimiser = torch.optim.AdamW(policy.parameters(), lr=2e-3)
    rows = sums(200, 99)
    for step in range(1, 3001):
        batch = []
        for _ in range(96):
            a, b = draw.randrange(10, 100), draw.randrange(10, 100)
            said = solution(a, b, lambda x: max(0, x + draw.choice((-2, -1, 1, 2))) if draw.random() < noise else x)
            batch.append((encode(render(question(a, b))), [*encode(said), EOS]))
        longest = max(len(p) + len(r) for p, r in batch)
        ids = torch.tensor([[BOS, *p, *r] + [PAD] * (longest - len(p) - len(r)) for p, r in batch])
        labels = torch.full_like(ids, -100)
        for i, (p, r) in enumerate(batch):
            labels[i, 1 + len(p) : 1 + len(p) + len(r)] = torch.tensor(r)
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 50)
        loss = policy(input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimiser.step()
        if step % 25 == 0 and step >= 100:
            found = sample(policy, [q for q, _ in rows], {"temperature": 0.0}, 56, [0] * len(rows))
            right = sum(extracted(decode(r)) == t for (r, _), (_, t) in zip(found, rows, strict=True)) / len(rows)
            print("warm", step, float(loss), right, file=sys.stderr, flush=True)
            if low <= right <= high:
                policy.save_pretrained(path)
                return policy
    raise RuntimeError("the warm start missed its band")


@torch.no_grad()
def sample(
    policy: LlamaForCausalLM, questions: list[str], how: dict[str, Any], limit: int, seeds: list[int]
) -> list[tuple[list[int], list[float]]]:
    """Responses (with the end token) and the log-probs that the engine reports: of the distribution drawn from."""
    prompts = [[BOS, *encode(render(q))] for q in questions]
    widest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (widest - len(p)) + p for p in prompts])
    mask = (ids != PAD).long()
    noise = torch.stack([torch.rand(limit, generator=torch.Generator().manual_seed(s)) for s in seeds])
    out: list[list[int]] = [[] for _ in prompts]
    said: list[list[float]] = [[] for _ in prompts]
    done = torch.zeros(len(prompts), dtype=torch.bool)
    stop, past, feed = how.get("stop", EOS), None, ids
    position = mask.cumsum(-1) - 1
    temperature = how.get("temperature", 1.0)
    for t in range(limit):
        got = policy(
            input_ids=feed, attention_mask=mask, position_ids=position.clamp_min(0), past_key_values=past, use_cache=True
        )
        past, logits = got.past_key_values, got.logits[:, -1].float()
        if temperature == 0:
            token = logits.argmax(-1)
            logp = torch.zeros_like(token, dtype=torch.float32)
        else:
            logits = logits / temperature
            if k := how.get("top_k"):
                logits = logits.masked_fill(logits < logits.topk(k).values[:, -1:], -torch.inf)
            if (p := how.get("top_p", 1.0)) < 1:
                ordered, index = logits.softmax(-1).sort(descending=True)
                cut = ordered.cumsum(-1) - ordered >= p
                logits = logits.masked_fill(torch.zeros_like(cut).scatter(1, index, cut), -torch.inf)
            every = logits.log_softmax(-1)
            token = (every.exp().cumsum(-1) < noise[:, t : t + 1]).sum(-1).clamp_max(every.shape[1] - 1)
            logp = every.gather(1, token[:, None])[:, 0].clamp_min(-50)
        for i in torch.nonzero(~done)[:, 0].tolist():
            out[i].append(int(token[i]))
            said[i].append(float(logp[i]))
        done |= token == stop
        if bool(done.all()):
            break
        feed = token[:, None]
        mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=mask.dtype)], 1)
        position = position[:, -1:] + 1
    return list(zip(out, said, strict=True))


def padded(
    questions: list[str], responses: list[list[int]], limit: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """prompts (left), responses (right, to the limit), attention mask, response mask, as verl has them."""
    prompts = [[BOS, *encode(render(q))] for q in questions]
    widest = max(map(len, prompts))
    left = torch.tensor([[PAD] * (widest - len(p)) + p for p in prompts])
    right = torch.tensor([r + [PAD] * (limit - len(r)) for r in responses])
    kept = torch.tensor([[1] * len(r) + [0] * (limit - len(r)) for r in responses])
    return left, right, torch.cat([(left != PAD).long(), kept], 1), kept


def forward(
    policy: LlamaForCausalLM, left: torch.Tensor, right: torch.Tensor, attention: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """log-probs of the responses, entropy, and the sum of squared probabilities, [batch, limit] each."""
    used = int(attention[:, left.shape[1] :].sum(-1).max())
    ids = torch.cat([left, right[:, :used]], 1)
    seen = attention[:, : ids.shape[1]]
    logits = policy(
        input_ids=ids, attention_mask=seen, position_ids=(seen.cumsum(-1) - 1).clamp_min(0)
    ).logits.float()[:, left.shape[1] - 1 : -1] / temperature
    every = logits.log_softmax(-1)
    found = every.gather(-1, right[:, :used, None])[..., 0], -(every.exp() * every).sum(-1), every.exp().pow(2).sum(-1)
    a, b, c = (torch.nn.functional.pad(x, (0, right.shape[1] - used)) for x in found)
    return a, b, c


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

    def scored(self, questions: list[str], texts: list[str], truths: list[str], step: int) -> dict[str, list[Any]]:
        found = [self.s.score(render(q), r, t, step) for q, r, t in zip(questions, texts, truths, strict=True)]
        rows = [f if isinstance(f, dict) else {"score": f} for f in found]
        return {k: [r[k] for r in rows] for k in rows[0]}

    # ------------------------------------------------------------ validation
    def validate(self, step: int) -> dict[str, float]:
        s, rows = self.s, [row for row in self.s.held for _ in range(self.s.val_n)]
        how = {"temperature": 0.0 if s.val_n == 1 else 1.0, **{k: v for k, v in s.sampler(step).items() if k == "stop"}}
        seeds = [7919 * step + i for i in range(len(rows))]
        found = sample(self.engine, [q for q, _ in rows], how, s.max_response, seeds)
        texts = [decode(r) for r, _ in found]
        infos = self.scored([q for q, _ in rows], texts, [t for _, t in rows], step)
        scores = infos.pop("score")
        infos = {"reward": scores, **infos}
        if s.val_dumps:
            inputs, truths = [render(q) for q, _ in rows], [t for _, t in rows]
            verl.write_generations(inputs, texts, truths, scores, infos, self.folder / "validation", step)
        uids = [f"u{i // s.val_n}" for i in range(len(rows))]
        return verl.validation_metrics([s.source] * len(rows), uids, infos)

    # ------------------------------------------------------------ training
    def fit(self) -> None:
        s = self.s
        if s.config:
            (self.folder / ".hydra").mkdir(exist_ok=True)
            (self.folder / ".hydra" / "config.yaml").write_text(configuration(s))
        if s.test_freq > 0:
            first = self.validate(0)
            self.say(f"Initial validation metrics: {first}")
            self.log(first, 0)
        order: list[int] = []
        epoch = 0
        for step in range(1, s.steps + 1):
            if len(order) < s.prompts:
                epoch += bool(step > 1)
                order = self.draw.sample(range(len(s.rows)), len(s.rows))
            picked, order = order[: s.prompts], order[s.prompts :]
            row = self.step(step, [s.rows[i] for i in picked], epoch)
            self.log(row, step)
        if self.file is not None:
            self.file.finish()
        if self.console is not None:
            self.console.close()

    def step(self, step: int, tasks: list[tuple[str, str]], epoch: int) -> dict[str, Any]:
        s, began, timing, data = self.s, time.time(), {}, {}
        repeated = [t for t in tasks for _ in range(s.n)]
        questions, truths = [q for q, _ in repeated], [t for _, t in repeated]
        how = {"temperature": s.temperature, **s.sampler(step)}
        each = (lambda i: i // s.n) if how.get("one_seed") else (lambda i: i)
        seeds = [(s.seed * 1000003 + step) * 4096 + each(i) for i in range(len(repeated))]
        found = sample(self.engine, questions, how, s.max_response, seeds)
        timing["gen"] = time.time() - began
        left, right, attention, mask = padded(questions, [r for r, _ in found], s.max_response)
        reported = torch.zeros(right.shape)
        for i, (_, logp) in enumerate(found):
            reported[i, : len(logp)] = torch.tensor(logp)
        if s.reported is not None:
            reported = s.reported(reported, mask)
        texts = [decode(r) for r, _ in found]
        infos = self.scored(questions, texts, truths, step)
        if s.order is not None:
            infos = {k: s.order(v, random.Random(f"{s.seed}/{step}")) for k, v in infos.items()}
        scores = infos.pop("score")
        tokens = torch.zeros(right.shape)
        tokens[torch.arange(len(found)), mask.sum(-1) - 1] = torch.tensor(scores, dtype=torch.float32)
        uid = [str(uuid.UUID(int=self.draw.getrandbits(128))) for _ in range(len(found) if s.unique_uid else len(tasks))]
        index = np.array(uid if s.unique_uid else [u for u in uid for _ in range(s.n)], dtype=object)

        lap = time.time()
        with torch.no_grad():
            old, entropy, squares = forward(self.actor, left, right, attention, s.temperature)
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
            batch.batch["rollout_log_probs"] = reported
            data.update(verl.debug.calculate_debug_metrics(batch))
        if s.kl_loss is not None or s.kl_in_reward is not None:
            with torch.no_grad():
                batch.batch["ref_log_prob"] = forward(self.reference, left, right, attention, s.temperature)[0]
        if s.kl_in_reward is not None:
            control = verl.core.FixedKLController(s.kl_in_reward)
            batch, found_kl = verl.apply_kl_penalty(batch, control, kl_penalty="kl")
            data.update(found_kl)
        if s.log_probs:
            batch, found_gap = verl.correction.compute_rollout_correction_and_add_to_batch(batch, {})
            data.update(found_gap)
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
        timing["step"] = time.time() - began
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
        """The actor's update: epochs of mini-batches, verl's loss, its metrics averaged over them."""
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
                logp, entropy, _ = forward(self.actor, left[part], right[part], attention[part], s.temperature)
                loss, found = verl.core.compute_policy_loss_vanilla(
                    b["old_log_probs"][part], logp, b["advantages"][part], mask[part], "token-mean", config
                )
                found = {**found, "actor/pg_loss": loss.item()}
                if s.entropy_coeff:
                    loss = loss - s.entropy_coeff * verl.core.agg_loss(entropy, mask[part], "token-mean")
                if s.kl_loss is not None:
                    away = verl.core.kl_penalty(logp, b["ref_log_prob"][part], "low_var_kl")
                    away = verl.core.agg_loss(away, mask[part], "token-mean")
                    loss = loss + s.kl_loss * away
                    found |= {"actor/kl_loss": away.item(), "actor/kl_coef": s.kl_loss}
                self.optimiser.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(self.actor.parameters(), s.grad_clip)
                if torch.isfinite(norm):  # verl's FSDP engine skips the step otherwise
                    self.optimiser.step()
                found |= {"actor/loss": loss.item(), "actor/grad_norm": float(norm)}
                for k, v in found.items():
                    rows.setdefault(k, []).append(v)
        lr = self.schedule.get_last_lr()[0]
        self.schedule.step()
        return {**{k: float(v) for k, v in verl.reduce_metrics(dict(rows)).items()}, "actor/lr": lr}


def configuration(s: Setup) -> str:
    """What hydra writes, as far as the loop has such options."""
    return f"""actor_rollout_ref:
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
