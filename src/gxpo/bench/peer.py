"""Training steps of gxpo against TRL's GRPOTrainer: same model, prompts, rewards, group size, lengths, dtype.

8 prompts x 8 samples x 32 tokens of full length, AdamW on every parameter, one optimiser step on the batch. TRL runs at
its fastest micro-batch of {4, 8, 16}, with its fused optimiser and without activation checkpointing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gxpo.bench.plan import DTYPE
from gxpo.bench.runner import Case, Side, Worker

if TYPE_CHECKING:
    from gxpo.bench.plan import Plan

PROMPTS, GROUP, NEW = 8, 8, 32
LR = {"tiny": 1e-4, "smollm2": 1e-5}
STATES = {"tiny": "float32", "smollm2": "bfloat16"}  # of the optimiser: TRL's are of the parameters' dtype
MICROBATCH = {"tiny": 2048, "smollm2": 512}  # tokens; fewer cost speed, more cost memory


def synthetic_reward(ids: Sequence[int]) -> float:
    """Synthetic reward of a completion: unrelated to its quality, but different within groups."""
    return sum(ids) % 7 / 6


def questions(n: int, length: int, seed: int = 0) -> list[str]:
    """Prompts of digits: both tokenizers have one token per digit."""
    draw = random.Random(seed)
    return ["".join(draw.choice("0123456789") for _ in range(length)) for _ in range(n)]


# ---------------------------------------------------------------- gxpo
def reward(forest: Any, texts: Sequence[str], tasks: Sequence[Any]) -> list[float]:
    """`value` of every trajectory."""
    actions: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
    for r, token in zip(forest.path_trajectory.tolist(), forest.token[forest.path_token].tolist(), strict=True):
        actions[r].append(token)
    return [synthetic_reward(ids) for ids in actions]


def gxpo_step(model: str, length: int, group: int, folder: str, settings: Mapping[str, Any] | None = None) -> Any:
    """Steps of gxpo's trainer with metrics, without evaluations, checkpoints and files."""
    from gxpo.parts.definition import SettingValue
    from gxpo.training import config
    from gxpo.training.loop import Trainer

    # Equally many rollouts in a step, whatever the group size.
    prompts = PROMPTS * GROUP // group
    path = Path(folder) / f"prompts-{length}.jsonl"
    lines = [json.dumps({"prompt": q, "answer": "0"}) for q in questions(8 * prompts, length)]
    path.write_text("\n".join(lines))
    values = {
        "model": f"{folder}/{model}",
        "task": str(path),
        "method": "grpo@trl",
        "rollout.group_size": group,
        "tasks.per_step": prompts,
        # Prompts are texts: a chat template would make gxpo's longer than TRL's.
        "chat.template": "none",
        "sampling.engine": "torch",
        "sampling.max_new_tokens": NEW,
        "optim.lr": LR[model],
        "learner.dtype": DTYPE[model],
        "learner.states": STATES[model],
        "learner.tokens_per_microbatch": MICROBATCH[model],
        **(settings or {}),
    }
    # Nothing but the step: no evaluation, no checkpoint, and TRL's own settings through `grpo@trl`.
    resolved = config.resolve({k: SettingValue(v, "bench") for k, v in values.items()})
    trainer = Trainer(resolved, out=Path(folder) / "run", reward=reward)
    setattr(trainer.engine, "stop_ids", ())  # noqa: B010  # every sample has its full length, as TRL's min_new_tokens
    trainer.chat.stop_ids = ()

    def step() -> dict[str, Any]:
        row = trainer.step()
        tokens = trainer.last_step[0].n_tokens if trainer.last_step else 0
        keys = ("time_sample_s", "time_update_s", "generated_tokens", "unique_token_ratio", "loss", "grad_norm")
        return {k: row[k] for k in keys if k in row} | {"tokens": tokens}

    setattr(step, "trainer", trainer)  # noqa: B010  # for suites that look into it
    return step


# ---------------------------------------------------------------- TRL
def trl_arguments(
    out: str, micro_batch: int, batch: int, group: int, full: bool = True, **overrides: Any
) -> dict[str, Any]:
    """GRPOConfig's arguments on this machine: fused optimiser, no checkpointing; `full`: every sample is `NEW` long."""
    return {
        "output_dir": out,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": batch // micro_batch,
        "num_generations": group,
        "max_completion_length": NEW,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        # Without KL there is no reference model on either side.
        "beta": 0.0,
        "temperature": 1.0,
        "gradient_checkpointing": False,
        "generation_kwargs": {"min_new_tokens": NEW} if full else None,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **overrides,
    }


def load_for_trl(path: str, dtype: str) -> tuple[Any, Any]:
    """Tokenizer and policy for TRL."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))


def trl_step(model: str, length: int, group: int, folder: str, micro_batch: int) -> Any:
    """Steps of TRL's GRPOTrainer, driven from its callbacks."""

    def train(gate: Any) -> None:
        import transformers

        from gxpo.base.errors import need

        trl: Any = need("trl", "trl")
        datasets: Any = need("datasets", "trl")
        tokenizer, policy = load_for_trl(f"{folder}/{model}", DTYPE[model])
        prompts = PROMPTS * GROUP // group
        data = datasets.Dataset.from_list([{"prompt": q} for q in questions(8 * prompts, length)])
        group_of_trl = max(2, group)  # TRL has no groups of one
        arguments = trl_arguments(f"{folder}/trl", micro_batch, prompts * group, group_of_trl, learning_rate=LR[model])
        times = {"time_sample_s": 0.0, "tokens": 0}

        class Timed(trl.GRPOTrainer):
            def _generate_and_score_completions(self, inputs: Any) -> Any:
                import time

                start = time.perf_counter()
                batch = super()._generate_and_score_completions(inputs)
                times["time_sample_s"] = time.perf_counter() - start
                times["tokens"] = int(batch["prompt_mask"].sum() + batch["completion_mask"].sum())
                return batch

        # TRL owns its loop, so it waits in a callback for the worker to ask for the next round.
        class Gated(transformers.TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                # A gate that is closed ends TRL's loop from within, which has no other way out.
                control.should_training_stop = not gate.wait()

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                gate.finish_round(times)

        def rewards(completion_ids: Any, **columns: Any) -> list[float]:
            return [synthetic_reward(ids) for ids in completion_ids]

        Timed(
            model=policy,
            # More steps than ever run: the gate decides.
            args=trl.GRPOConfig(**arguments, max_steps=10**6),
            train_dataset=data,
            reward_funcs=rewards,
            processing_class=tokenizer,
            callbacks=[Gated()],
        ).train()

    train.holds_gate = True  # type: ignore[attr-defined]  # the worker passes its gate to such a function
    return train


# ---------------------------------------------------------------- rows
MICRO_BATCHES = (4, 8, 16)
GROUPS_OF_ONE = (
    "groups of one, each prompt its own: gxpo whitens rewards over the batch (reinforce_pp), which reads every row; "
    "TRL has no groups of one and gets 32 prompts twice, which costs it the same, as it shares nothing"
)


@dataclass(frozen=True)
class Row:
    """One row: model, prompt tokens, group size."""

    model: str
    length: int
    group: int = GROUP

    @property
    def unique_token_ratio(self) -> float:
        """Tokens of the flat samples per unique token."""
        rows = PROMPTS * GROUP
        return rows * (self.length + NEW) / (rows // self.group * self.length + rows * NEW)

    @property
    def settings(self) -> dict[str, Any]:
        """gxpo's settings beyond `grpo@trl`."""
        return {} if self.group > 1 else {"method": "reinforce_pp", "objective.aggregate": "token_mean"}


ROWS = {
    "tiny/16": Row("tiny", 16),
    "tiny/256": Row("tiny", 256),
    "smollm2/16": Row("smollm2", 16),
    "smollm2/64": Row("smollm2", 64),
    "smollm2/256": Row("smollm2", 256),
    "smollm2/g1": Row("smollm2", 64, 1),
}


def sides(row: Row, folder: str, python: str | None, micro_batch: int) -> tuple[Side, Side]:
    """gxpo and TRL, in the same environment."""
    work = {"model": row.model, "length": row.length, "group": row.group, "folder": folder}
    gxpo_side = Side("gxpo", "gxpo.bench.peer:gxpo_step", work | {"settings": row.settings}, python)
    return gxpo_side, Side("trl", "gxpo.bench.peer:trl_step", work | {"micro_batch": micro_batch}, python)


def measure(name: str, plan: Plan) -> dict[str, Any]:
    """Measure the row of this name."""
    row, folder = ROWS[name], plan.models(ROWS[name].model)
    # TRL is timed at the fastest of its micro-batch sizes, found by short trials on this machine.
    sizes = (8,) if plan.quick else MICRO_BATCHES
    tries = 2 if row.model == "tiny" else 1  # a round of a real model takes minutes
    seconds = {size: _shortest(sides(row, folder, plan.python, size)[1], plan, tries) for size in sizes}
    fastest = min(sizes, key=lambda size: seconds[size])
    figures: dict[str, Any] = {
        "unique_token_ratio": row.unique_token_ratio,
        "micro_batch": fastest,
        "micro_batch_seconds": {str(size): s for size, s in seconds.items()},
    }
    if row.group == 1:
        figures["note"] = GROUPS_OF_ONE
    return plan.measure(Case(name, *sides(row, folder, plan.python, fastest), figures=figures))


def _shortest(side: Side, plan: Plan, rounds: int) -> float:
    """Seconds of the fastest of `rounds` rounds."""
    plan.notify(f"TRL's micro-batch of {side.arguments['micro_batch']}")
    worker = Worker(side, plan.threads)
    try:
        return min(worker.round()["seconds"] for _ in range(rounds))
    finally:
        worker.close()
