"""`Doctor`: a callback for TRL's trainers that looks for the causes of stalled runs that `gxpo doctor` knows.

    GRPOTrainer(..., callbacks=[Doctor()])   # TRL's own trainer, or gxpo.adapters.trl's

It reads TRL's log, the completions that `log_completions=True` writes (or, attached to a trainer, the trainer's own
log of them), and whether a sample of the trained weights moves. It changes nothing of the run.
"""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gxpo.base.terminal import say

if TYPE_CHECKING:
    Base: Any = object  # mixed into transformers' TrainerCallback
    from gxpo.doctor.finding import Diagnosis
    from gxpo.doctor.live import Live
    from gxpo.doctor.rollouts import Rollouts, Row
    from gxpo.doctor.runlog import RunLog
else:
    Base = object

SAMPLED = 1 << 16  # size of the sample of weights
SUMMARY = "train_runtime"  # a key of the last row alone, whose figures are of the whole run


def never_fails(event: Callable[..., None]) -> Callable[..., None]:
    """Guard an event of the callback: an exception is one warning and ends the watching, never the training."""

    @wraps(event)
    def guarded(self: Watching, *args: Any, **kwargs: Any) -> None:
        if self.failed:
            return
        try:
            event(self, *args, **kwargs)
        except Exception as error:
            self.failed = True
            warnings.warn(f"doctor: watches no more: {type(error).__name__}: {error}", stacklevel=2)

    return guarded


class Watching(Base):
    """Callback that warns once of each cause that is found, and prints a verdict of a line or two at the end.

    every  steps between checks; a check waits while checks have taken more than 1 % of the time
    stop   True: end the training where a critical cause is likely or proved
    quiet  True: print no verdict at the end
    `diagnosis` is the newest `gxpo.doctor.Diagnosis`; after the training the last one.
    """

    def __init__(self, *, every: int = 10, stop: bool = False, quiet: bool = False) -> None:
        if every < 1:
            raise ValueError(f"every={every}: steps between checks, at least 1")
        self.every, self.stop, self.quiet = every, stop, quiet
        self.live: Live | None = None
        self.failed = False
        self._trainer: Any = None
        self._started_at, self._resumed_at = 0.0, 0
        self._sample: Any = None
        self._movement: dict[str, float] = {}
        self._evaluation_entry: Any = None  # the newest row of the log of completions after an evaluation

    @property
    def diagnosis(self) -> Diagnosis | None:
        return None if self.live is None else self.live.diagnosis

    def attach(self, trainer: Any) -> Watching:
        """Read the completions from this trainer's own log; without it they are read only under `log_completions`."""
        self._trainer = trainer
        return self

    # ------------------------------------------------------------ the trainer's events
    @never_fails
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        from gxpo.doctor.live import Live

        settings = dict(args.to_dict()) if hasattr(args, "to_dict") else dict(vars(args))
        settings |= _model_settings(model) | {"max_steps": state.max_steps}
        self.live = Live("trl", settings, every=self.every, stop_on=("critical",) if self.stop else ())
        self._started_at, self._resumed_at = time.time(), state.global_step
        # a resumed run has logged steps before: they belong to the picture
        for row in state.log_history:
            if SUMMARY not in row:
                self.live.row(int(row["step"]), {k: v for k, v in row.items() if k != "step"})
        self._sample = _weights(model)

    @never_fails
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        previous_sample, self._sample = self._sample, _weights(model)
        if previous_sample is not None and self._sample is not None:
            self._movement = {
                "weights_moved": float(np.mean(previous_sample != self._sample)),
                "weights_crc": float(zlib.crc32(self._sample.tobytes())),
            }
        if self.stop and state.global_step % self.every == 0 and not _is_single_process():
            # all processes have to end after the same step; only the first one looks at the run
            control.should_training_stop |= _any_process(self.live is not None and self.live.stop)

    @never_fails
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._evaluation_entry = self._newest_entry()

    @never_fails
    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        # every process logs, one is enough to look at
        if self.live is None or logs is None or SUMMARY in logs or not state.is_world_process_zero:
            return
        evaluation = any(key.startswith("eval_") for key in logs)
        self.live.row(state.global_step, logs, {} if evaluation else self._movement)
        if evaluation:
            return
        # an evaluation's completions stay in the trainer's log until the next batch: they are not the policy's training
        if self._trainer is not None and self._newest_entry() != self._evaluation_entry:
            rows = _rows(self._trainer, state.global_step)
            self.live.rollouts(rows[: 16 * self._trainer.num_generations], of=len(rows))
        if self.live.due(state.global_step):
            self.live.check(self._reader(args, state))
            control.should_training_stop |= self.live.stop and _is_single_process()

    @never_fails
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from gxpo.doctor.live import closing

        if self.live is None or not state.is_world_process_zero:
            return
        self.live.check(self._reader(args, state), aloud=self.quiet)
        if self.diagnosis is not None and not self.quiet:
            say("\n".join(closing(self.diagnosis)))

    # ------------------------------------------------------------ completions
    def _newest_entry(self) -> Any:
        """Return (completion, prompt) of the newest entry in the trainer's log of completions, to recognise it."""
        logs = getattr(self._trainer, "_logs", None)
        return (str(logs["completion"][-1]), str(logs["prompt"][-1])) if logs and logs["completion"] else None

    def _reader(self, args: Any, state: Any) -> Any:
        """Return a reader of the tables of completions that TRL writes; None where there are none to read."""
        folder = Path(args.output_dir) / "completions"
        if self._trainer is not None or not getattr(args, "log_completions", False):
            return None

        def read(log: RunLog) -> Rollouts | None:
            from gxpo.doctor.rollout_files import rollouts

            files = [f for f in sorted(folder.glob("completions_*.parquet")) if self._is_ours(f, state.global_step)]
            weights, size = log.config.get("reward_weights"), log.config.get("group_size")
            return rollouts(
                files,
                folder.parent,
                group_size=size,
                reward_weights=weights,
                components=log.components() or None,
                evaluated={int(s) for n in log.series if n.startswith("eval/") for s in log.steps(n)} or None,
            )[0]

        return read

    def _is_ours(self, file: Path, step: int) -> bool:
        """Return False for a table of another run that wrote into the same directory."""
        number = int(file.stem.rpartition("_")[2])
        return number <= step and (number <= self._resumed_at or file.stat().st_mtime >= self._started_at - 1)


def _model_settings(model: Any) -> dict[str, Any]:
    """Return settings that only the model tells: dtype of the trained weights, and whether they are an adapter's."""
    trained = [p for p in model.parameters() if p.requires_grad] if model is not None else []
    settings: dict[str, Any] = {"use_peft": bool(getattr(model, "peft_config", None))}
    return settings | ({"dtype": str(trained[0].dtype).removeprefix("torch.")} if trained else {})


def _weights(model: Any) -> Any:
    """Sample the trained weights, the same ones at every call, float32 [n]; None without a model."""
    import torch

    trained = [p.detach() for p in model.parameters() if p.requires_grad] if model is not None else []
    stride = max(1, sum(p.numel() for p in trained) // SAMPLED)
    # joined on each device first: one copy to the CPU instead of one for each parameter
    by_device: dict[Any, list[Any]] = {}
    for p in trained:
        by_device.setdefault(p.device, []).append(p.reshape(-1)[::stride].float())
    parts = [torch.cat(pieces).cpu() for pieces in by_device.values()]
    return torch.cat(parts).numpy() if parts else None


def _rows(trainer: Any, step: int) -> list[Row]:
    """Return the rows of the newest generation batch, from the trainer's own log."""
    from gxpo.doctor.rollout_credit import total
    from gxpo.doctor.rollouts import Row, completion_text, first_reference, reference, text

    logs, size = trainer._logs, trainer.num_generations
    prompts, completions, advantages = (list(logs[k]) for k in ("prompt", "completion", "advantages"))
    rewards = {name: np.array(list(values), dtype=float) for name, values in logs["rewards"].items()}
    table = np.stack(list(rewards.values()), axis=1)
    score = total(table, trainer.reward_weights.cpu().numpy().astype(float))
    # columns of the data set that were logged for every row; one of them may be the reference answers
    extra = {name: list(values) for name, values in logs["extra"].items() if len(values) == len(prompts)}
    answer = first_reference(list(extra))
    return [
        Row(
            step,
            text(prompts[i]),
            completion_text(completions[i]),
            float(score[i]),
            group=i // size,
            components={name: float(values[i]) for name, values in rewards.items()},
            advantage=float(advantages[i]),
            reference=reference(extra[answer][i]) if answer else None,
            where=f"step {step}, row {i}",
        )
        for i in range(len(prompts))
    ]


def _is_single_process() -> bool:
    """Return True if one process trains."""
    import torch

    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _any_process(stop: bool) -> bool:
    """Return True if `stop` is True in any process; a collective call of all of them."""
    import torch

    answers: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(answers, stop)
    return any(answers)
