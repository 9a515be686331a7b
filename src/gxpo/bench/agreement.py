"""Agreement with TRL: losses, gradients and parameters of GRPOTrainer and of `grpo@trl` on the same rollouts.

TRL samples, computes its loss and gradient and takes its optimiser step. gxpo is given the rollouts and rewards alone,
starts from the same parameters, and takes steps of its own: what differs at one step is still there at the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gxpo.base.errors import need
from gxpo.bench.peer import GROUP, PROMPTS, load_for_trl, questions, synthetic_reward, trl_arguments
from gxpo.bench.runner import Side, Worker

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-4  # of the loss, absolute; of the gradient, relative
STEPS, LENGTH = 5, 16
MAX_GRAD_NORM = 0.5  # low enough to clip every step


@dataclass(frozen=True)
class Settings:
    """Settings of a case.

    ragged       completions may end early
    micro_batch  TRL's
    epochs       optimiser steps on the same rollouts
    """

    ragged: bool
    micro_batch: int
    epochs: int = 1
    lr: float = 1e-4


CASES: Mapping[str, Settings] = {
    **{f"{kind}/{size}": Settings(kind == "ragged", size) for kind in ("full", "ragged") for size in (4, 8)},
    "reused/8": Settings(True, 8, epochs=2, lr=1e-3),  # ratios leave 1, and some are clipped
}


def rows(
    case: str, folder: str, *, threads: int, python: str | None, notify: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """A row for every step, and one for the parameters after the last; each says whether it `agrees`.

    case    one of `CASES`
    folder  holds the model "tiny" (`plan.save_models`)
    python  interpreter of an environment that has TRL
    """
    notify(f"{case}: {STEPS} steps of TRL, and the same under grpo@trl")
    arguments = {"folder": folder, **vars(CASES[case])}
    worker = Worker(Side("agreement", "gxpo.bench.agreement:run_both", arguments, python), threads)
    try:
        step_rows = worker.round()["rows"]
    finally:
        worker.close()
    return [{**row, "name": f"{case}/{row['name']}", "tolerance": TOLERANCE} for row in step_rows]


def run_both(folder: str, **settings: Any) -> Callable[[], dict[str, Any]]:
    """Run one case in TRL and in gxpo."""
    case_settings, path = Settings(**settings), f"{folder}/tiny"
    return lambda: {"rows": _compare_steps(path, case_settings, *_run_trl(path, f"{folder}/trl", case_settings))}


@dataclass
class Step:
    """TRL's results on one batch of rollouts.

    rewards   [B]; group [B]: which prompt a row is of
    batch     its tensors: prompt_ids, prompt_mask [B, prompt], completion_ids, completion_mask [B, completion]
    losses, gradients  of every optimiser step, summed over its micro-batches; gradients by parameter, before clipping
    """

    rewards: Tensor
    group: list[str]
    batch: dict[str, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)


def _run_trl(path: str, out: str, settings: Settings) -> tuple[list[Step], dict[str, Tensor]]:
    """Train with TRL and record its rollouts, losses and gradients; also returns its parameters after the last step."""
    trl: Any = need("trl", "trl")
    datasets: Any = need("datasets", "trl")
    tokenizer, policy = load_for_trl(path, "float32")
    steps: list[Step] = []
    losses: list[float] = []  # of the micro-batches so far
    n_accumulated = PROMPTS * GROUP // settings.micro_batch  # micro-batches of an optimiser step

    # TRL computes a loss for each micro-batch; gxpo's step is compared with their sum over an optimiser step, and with
    # the gradient before clipping.
    class RecordingTrainer(trl.GRPOTrainer):
        def _calculate_rewards(self, inputs: Any, *arguments: Any) -> Any:
            rewards_BF = super()._calculate_rewards(inputs, *arguments)
            steps.append(Step(rewards_BF.sum(1).double(), [x["prompt"] for x in inputs]))
            return rewards_BF

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            batch = super()._generate_and_score_completions(inputs)
            names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
            # Copies, which later steps can't change.
            steps[-1].batch = {name: batch[name].clone() for name in names}
            return batch

        def training_step(self, *args: Any) -> Any:
            loss = super().training_step(*args)
            losses.append(float(loss))
            # A loss at a time until the step is complete: only then p.grad is the whole gradient.
            if len(losses) == n_accumulated:
                steps[-1].losses.append(sum(losses))
                steps[-1].gradients.append(
                    {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}
                )
                losses.clear()
            return loss

    arguments = trl_arguments(
        out,
        settings.micro_batch,
        PROMPTS * GROUP,
        GROUP,
        # With ragged lengths, padding and normalisation by length are compared as well.
        full=not settings.ragged,
        num_iterations=settings.epochs,
        max_steps=STEPS * settings.epochs,
        learning_rate=settings.lr,
        weight_decay=0.0,
        max_grad_norm=MAX_GRAD_NORM,
    )
    RecordingTrainer(
        model=policy,
        args=trl.GRPOConfig(**arguments),
        train_dataset=datasets.Dataset.from_list([{"prompt": q} for q in questions(STEPS * PROMPTS, LENGTH)]),
        reward_funcs=lambda completion_ids, **columns: [synthetic_reward(ids) for ids in completion_ids],
        processing_class=tokenizer,
    ).train()
    return steps, {name: p.detach().clone() for name, p in policy.named_parameters()}


def _compare_steps(
    path: str, settings: Settings, steps: list[Step], trl_parameters: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """Take gxpo's own steps on TRL's rollouts, and compare loss and gradient of each."""
    import torch
    import transformers

    from gxpo.algorithms.signals import Signals
    from gxpo.learning.torch import TorchLearner
    from gxpo.methods.compose import method
    from gxpo.training.bound_learner import BoundLearner

    # Float32 on both sides: in 16 bits rounding would hide a wrong formula.
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch_learner = TorchLearner(
        model, lr=settings.lr, betas=(0.9, 0.999), weight_decay=0.0, max_grad_norm=MAX_GRAD_NORM
    )
    learner, grpo = _GradientRecorder(torch_learner), method("grpo@trl")
    start_parameters, out = torch_learner.snapshot(), []
    # Parameters are never copied from TRL between steps, so that errors would add up and show.
    for number, step in enumerate(steps, 1):
        forest = _forest(step)
        signals = Signals.of(forest, {}, grpo.axes)
        credit = grpo.advantages(forest, signals, number)
        # Several epochs over the same rollouts: their later losses have ratios other than 1.
        weight = grpo.token_weights(forest, credit, signals, number)
        bound = BoundLearner(learner, grpo, forest, signals, number)
        for loss, gradient in zip(step.losses, step.gradients, strict=True):
            info = bound.step(forest, credit, weight)
            row = _difference(f"step{len(out) + 1}", learner.gradient, gradient)
            row |= {"loss_difference": abs(info.loss - loss), "loss": info.loss, "loss_trl": loss}
            row["agrees"] = max(row["difference"], row["loss_difference"]) < TOLERANCE
            out.append(row | {"tokens": int(step.batch["completion_mask"].sum())} | _clip_figures(bound.metrics[-1]))
    # Changes and not parameters: the difference of the steps relative to what they moved.
    parameters_row = _difference(
        "parameters", _subtract(torch_learner.snapshot(), start_parameters), _subtract(trl_parameters, start_parameters)
    )
    return [*out, parameters_row | {"agrees": parameters_row["difference"] < TOLERANCE}]


def _clip_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: x for name, x in metrics.items() if "clip" in name}


def _forest(step: Step) -> Any:
    import torch

    from gxpo.forest.forest import Forest

    b = step.batch
    return Forest.from_padded(
        torch.cat([b["prompt_ids"], b["completion_ids"]], 1),
        b["completion_mask"],
        step.rewards,
        step.group,
        attention_mask=torch.cat([b["prompt_mask"], b["completion_mask"]], 1),
    )


class _GradientRecorder:
    """A learner that also records the gradient of its steps, before clipping."""

    def __init__(self, learner: Any) -> None:
        self.learner, self.gradient = learner, {}

    def step(self, forest: Any, loss: Any, **kwargs: Any) -> Any:
        self.gradient = self.learner.gradient(forest, loss, **kwargs)
        return self.learner.step(forest, loss, **kwargs)

    def outputs(self, *args: Any, **kwargs: Any) -> Any:
        return self.learner.outputs(*args, **kwargs)


def _subtract(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x - b[name] for name, x in a.items()}


def _difference(name: str, gxpo_tensors: Mapping[str, Tensor], trl_tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """ratio: norm of `own` / norm of `other`; difference: norm of what differs / norm of `other`."""
    if gxpo_tensors.keys() != trl_tensors.keys():
        raise ValueError(f"other parameters than TRL's: {sorted(gxpo_tensors.keys() ^ trl_tensors.keys())[:3]}")
    size, difference = _norm(trl_tensors), _norm(_subtract(gxpo_tensors, trl_tensors))
    ratio = _norm(gxpo_tensors) / size
    return {"name": name, "ratio": ratio, "spread": [ratio, ratio], "difference": difference / size, "norm_trl": size}


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return sum(float(x.double().square().sum()) for x in tensors.values()) ** 0.5
