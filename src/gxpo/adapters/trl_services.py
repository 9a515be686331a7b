"""Services of TRL's trainer for signals and segmenters: its model, tokenizer, prompts and reference answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters.trl_pictures import PicturedBatch, has_images
from gxpo.adapters.trl_rollouts import task_name
from gxpo.algorithms.signals import SignalTools
from gxpo.base import media
from gxpo.base.errors import ConfigError, GxpoError, TaskError, need
from gxpo.forest.forest import Forest
from gxpo.learning.lora import ALONE
from gxpo.learning.readout import Readout
from gxpo.learning.torch import TorchLearner
from gxpo.models.chat.plain import Tokens
from gxpo.models.decoder.vision import picture_grid_of
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.wording import reword


# ---------------------------------------------------------------- external model
# Another trainer's model as a learner: its log-probs, hidden states, and further outputs with their gradient.
class ExternalModel(TorchLearner):
    """Reads a model that somebody else trains; it has no optimiser, and never moves a parameter.

    model     a transformers causal language model (of peft: with its adapters in it), in memory as a whole
    autocast  the context of its forward passes
    tokens_per_microbatch  that go through it together, padding included
    """

    def __init__(
        self,
        model: Any,
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        tokens_per_microbatch: int = 8192,
    ) -> None:
        self.model, self.device, self._autocast = model, next(model.parameters()).device, autocast
        self.tokens_per_microbatch, self.images_per_microbatch = tokens_per_microbatch, None
        self.logits_at_once = 2**23
        self.lora, self._adapters, self._reference = None, None, None
        self.layout, self.policies = "flat", {ALONE: "trained"}
        self.attention = "dense"
        self.value_head, self.value_heads = None, ()
        self._optimiser_settings: dict[str, Any] = {}
        self._kernels = {"kernels": "transformers", "products": "auto", "choices": None, "recompute": False}
        with self._evaluating():
            self._readout = Readout(model, **self._kernels)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Run the model without dropout, then restore its mode."""
        training = self.model.training
        self.model.eval()
        try:
            with self._autocast():
                yield
        finally:
            self.model.train(training)

    def outputs(self, *args: Any, policy: str = "current", **kwargs: Any) -> dict[str, Tensor]:
        """See `TorchLearner.outputs`; there is no reference policy."""
        if policy != "current":
            raise GxpoError(f"the {policy} policy is not lent")
        with self._evaluating():
            return super().outputs(*args, **kwargs)

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        with self._evaluating():
            return super().hidden(forest, layer)

    def logits(self, states: Tensor) -> Tensor:
        with self._evaluating():
            return super().logits(states)

    def outputs_with_grad(
        self, forest: Forest, names: Sequence[str], signals: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Policy outputs by name, [P] float64 with their gradient.

        signals  that outputs are computed with, if any
        """
        packing = self._packing(forest)
        batches = packing.microbatches(torch.arange(forest.n_entries))
        with self._evaluating():
            outputs = [(b.entries, self._live(b, names, *([signals] if signals else []))) for b in batches]
        order = torch.cat([entries for entries, _ in outputs]).argsort()
        return {name: torch.cat([x[name] for _, x in outputs])[order] for name in names}

    def snapshot(self) -> dict[str, Tensor]:
        """Copy the trainable parameters, in order of names."""
        parameters = sorted(self.model.named_parameters())
        return {name: p.detach().clone() for name, p in parameters if p.requires_grad}


# ---------------------------------------------------------------- trl services
class TrainerServices:
    """Services that a trainer lends to a method's signals and segmenter.

    borrowed  names of `asks.SERVICES` that the method's parts use: the others cost nothing
    answers   the dataset's column of reference answers
    """

    def __init__(self, trainer: Any, borrowed: set[str], answers: str) -> None:
        self._trainer, self.borrowed, self._column = trainer, borrowed, answers
        self._prompts: dict[str, Any] = {}
        self._answers: dict[str, str | None] = {}
        self._rows: Sequence[Any] = ()  # prompts of the newest generation batch
        self._pictured: PicturedBatch | None = None  # the newest generation batch, if it has images

    @cached_property
    def learner(self) -> ExternalModel:
        """The policy in this process; ConfigError if its weights are spread over several."""
        trainer = self._trainer
        if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
            raise ConfigError(
                f"{trainer.gxpo_method.name} in TRL works with the model itself, whose weights DeepSpeed or FSDP "
                "spreads over processes: run it without them"
            )
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "get_base_model"):  # peft's; its adapters are inside
            model = model.get_base_model()
        return ExternalModel(model, autocast=trainer.accelerator.autocast)

    @cached_property
    def _tokens(self) -> Tokens:
        return Tokens(self._trainer._tokenizer)

    def note(
        self, inputs: Sequence[Mapping[str, Any]], prompts: Sequence[Any], names: list[str] | None = None
    ) -> list[str]:
        """Remember the rows of a generation batch; return the name of each row's task (None: by its prompt)."""
        names, self._rows = [task_name(p) for p in prompts] if names is None else names, prompts
        if "prompts" in self.borrowed:
            self._prompts = self._join_processes(dict(zip(names, prompts, strict=True)))
        if "answers" in self.borrowed:
            if any(self._column not in row for row in inputs):
                raise ConfigError(
                    f"{self._trainer.gxpo_method.name} in TRL reads the reference answers: the dataset has no column "
                    f"{self._column!r}; say answers='COLUMN' to GRPOTrainer"
                )
            reference_by_task = {n: row[self._column] for n, row in zip(names, inputs, strict=True)}
            self._answers = self._join_processes(
                {n: None if x is None else str(x) for n, x in reference_by_task.items()}
            )
        return names

    def _join_processes(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Join the entries of all processes."""
        if self._trainer.accelerator.num_processes == 1:
            return entries
        gathered = need("accelerate.utils", "trl").gather_object(list(entries.items()))
        return dict(gathered)

    def see(self, output: Mapping[str, Any]) -> PicturedBatch | None:
        """Return the policy on a generation batch with images, if the method works with the model; else None.

        ConfigError as in `PicturedBatch`.
        """
        reads = "model" in self.borrowed and has_images(output)
        self._pictured = PicturedBatch(self._trainer, output, self._rows) if reads else None
        return self._pictured

    @property
    def decode(self) -> Callable[[Sequence[int]], str]:
        tokenizer = self._trainer._tokenizer
        return lambda tokens: tokenizer.decode([t for t in tokens if 0 <= t < media.FIRST], skip_special_tokens=True)

    def _reworded_prompt(self, task: str, template: str, values: Mapping[str, str]) -> Sequence[int] | None:
        prompt = self._prompts.get(task)
        # an episode's context is more than its prompt, and can't be reworded
        if prompt is None or self._trainer.environments:
            return None
        try:
            new_prompt = reword(
                Task(task, prompt if isinstance(prompt, str) else tuple(prompt)), template, **values
            ).prompt
        except TaskError:
            return None
        return self._trainer._tokenize_prompts([new_prompt if isinstance(new_prompt, str) else list(new_prompt)])[0][0]

    def tools(self, step: int) -> SignalTools:
        """Return the services for a step."""
        tokens = self._tokens if "texts" in self.borrowed else None

        def encode(text: str) -> Sequence[int]:
            assert tokens is not None
            return tokens.encode(tokens.typed(text))

        def answers(forest: Forest) -> list[str | None]:
            return [self._answers.get(task) for task in forest.task]

        learner: Any = (self._pictured or self.learner) if "model" in self.borrowed else None
        pad, seed = self._trainer._tokenizer.pad_token_id, self._trainer.args.seed
        services: dict[str, Any] = {"encode": encode, "answers": answers, "reword": self._reworded_prompt}
        services["picture_grid"] = picture_grid_of(getattr(learner, "model", None))
        return SignalTools(learner, self.decode, pad, step, seed, **services)
