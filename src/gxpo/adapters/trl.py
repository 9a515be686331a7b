"""gxpo methods in TRL's GRPOTrainer: advantages, weights and objective of any method.

    from gxpo.adapters.trl import GRPOTrainer   # instead of: from trl import GRPOTrainer
    GRPOTrainer(model, method="ngrpo", ...)     # everything else as before

TRL samples, scores, logs, saves and steps; gxpo computes advantages, weights and the loss. The methods
that are replaced are private in TRL, and have changed between its versions: tests/adapters/test_trl.py is the contract,
and `TESTED` the version that it was run against.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.adapters import asks, trl_config, trl_growth, trl_records, trl_settings
from gxpo.adapters.trl_doctor import Watching
from gxpo.adapters.trl_parameters import ParameterCheck
from gxpo.adapters.trl_pictures import MODALITIES, check_dataset, need_known
from gxpo.adapters.trl_records import LossLog, StepFigures
from gxpo.adapters.trl_rollouts import Rewards, ScoredBatch, Window, own_tokens, rollouts
from gxpo.adapters.trl_services import TrainerServices
from gxpo.adapters.trl_settings import refuse, settings_against, translate_settings
from gxpo.algorithms.segments import SegmentTools
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError, need
from gxpo.forest.forest import Forest
from gxpo.learning.base import gradient_of
from gxpo.methods.compose import method as compose
from gxpo.methods.method import Method, controls, zero_signal_groups
from gxpo.parts.protocols import Output, PolicyTokens

if TYPE_CHECKING:
    GRPOTrainer: Any
    Doctor: Any

TESTED = "1.16"
ROW = "gxpo_row"  # column of TRL's batches: the row's index in the gathered generation batch

# class -> (mixin, module of the base, name of the base)
CLASSES = {
    "GRPOTrainer": (lambda: WithMethod, "trl", "GRPOTrainer"),
    "Doctor": (lambda: Watching, "transformers", "TrainerCallback"),
    "ParameterCheck": (lambda: ParameterCheck, "transformers", "TrainerCallback"),
}


def __getattr__(name: str) -> Any:
    """Make `GRPOTrainer` and `Doctor` on first use, so that importing this module needs no TRL."""
    if name == "AsyncGRPOTrainer":
        raise ConfigError(
            "TRL's AsyncGRPOTrainer has no place for other advantages: it samples and scores in a worker of its own; "
            "use GRPOTrainer"
        )
    if name not in ("GRPOTrainer", "Doctor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _adapter_class(name)
    return globals()[name]


@cache
def _adapter_class(name: str) -> Any:
    """Make one of CLASSES over its base class; with the trainer, TRL's configurations begin to note their arguments."""
    mixed, module, base = CLASSES[name][0](), *CLASSES[name][1:]
    if name == "GRPOTrainer":
        trl_config.note_arguments(need("trl", "trl").GRPOConfig)
    return type(name, (mixed, getattr(need(module, "trl"), base)), {"__module__": __name__, "__doc__": mixed.__doc__})


# where TRL was imported first, configurations may be made before the trainer's class is
if "trl.trainer.grpo_config" in sys.modules:
    trl_config.note_arguments(sys.modules["trl.trainer.grpo_config"].GRPOConfig)


class WithMethod(trl_records.Records):
    """TRL's GRPOTrainer with the advantages, weights and objective of a gxpo method.

    method      name or composition ("rloo+gspo", "grpo@trl"), as in `gxpo.method`; the default computes what TRL does
    overrides   leaf keys, e.g. {"objective.aggregate": "sequence_mean"}; they decide what two methods state differently
    success_at  a reward of at least this is a right answer; None: methods that read verdicts take rewards above 0
    answers, solutions  the dataset's columns of reference answers and of worked solutions, for methods that read them
    All other arguments are TRL's. Settings of TRL for what gxpo computes (`beta`, `loss_type`, `epsilon`,
    `scale_rewards`, ...) become the method's keys; one that contradicts a key of the method is refused.

    Statistics are over the gathered rows of all processes, the objective's constants over all rows of an optimiser
    step. A rollout without a reward (None from every function) is unscored: its advantage is 0 and it counts nowhere.
    Raises ConfigError where the method asks for what TRL does not have, naming the key, or for what is not given of
    images, where `train_dataset` has a column "image" or "images" (else with the first batch that shows some).
    """

    def __init__(
        self,
        *args: Any,
        method: str | Method = "grpo@trl",
        overrides: Mapping[str, Any] | None = None,
        success_at: float | None = None,
        answers: str = "answer",
        solutions: str = "solution",
        **kwargs: Any,
    ) -> None:
        # refused before TRL loads a model: what TRL can't give under any settings
        composed = compose(method, overrides)
        refuse(composed, trl_settings.declared_refusals(composed))
        super().__init__(*args, **kwargs)
        reward_weights = self.args.reward_weights or []
        # TRL adds an environment's reward to the functions without a weight for it
        weights = [*reward_weights, *[1.0] * (len(self.reward_func_names) - len(reward_weights))]
        rewards = list(zip(self.reward_func_names, weights, strict=True))
        composed = translate_settings(self.args, method, overrides or {}, rewards)
        composed = trl_growth.with_group_size(composed, self.args.num_generations)
        longest = self.max_completion_length
        fills: dict[str, Any] = {} if longest is None else {"horizon": float(longest), "max_length": longest}
        # which parts need what: found by trying them, since a user's functions declare nothing
        names, verdicts = list(self.reward_func_names), success_at is not None
        refuse(composed, trl_settings.refusals(composed.fill(**fills), verdicts, names))
        trial = {"verdicts": verdicts, "components": names, "lends": trl_settings.LENDS}
        self._reads = asks.facts_read(composed.fill(**fills), **trial)
        borrowed = asks.services_used(composed.fill(**fills), **trial)
        by_name = self._reads.get("components", "").startswith("credit")  # an estimator that weighs rewards itself
        refuse(composed, settings_against(self.args, composed, rewards if by_name else None))
        # micro-batches of a generation batch over all its passes: gxpo's step is a generation batch, TRL's max_steps
        # counts optimiser steps
        self._cycle = self.args.steps_per_generation * self.args.num_iterations
        optimiser_steps = max(1, self._cycle // self.args.gradient_accumulation_steps)
        if trl_settings.needs_length(composed):
            fills["total_steps"] = max(1, -(-self.args.max_steps // optimiser_steps))
        composed = composed.fill(**fills)
        self.gxpo_method, self.success_at = composed, success_at
        self._solutions, self._is_grown = solutions, trl_growth.is_grown(composed)
        self._grown: Tensor | None = None  # rewards of rows that are scored already
        if self._is_grown:
            problems = trl_growth.setting_problems(self, composed, solutions)
            refuse(composed, problems + trl_settings.evaluation_problems(self.args, composed, verdicts, names))
        # TRL's forward pass gives log-probs and entropies; for other outputs gxpo runs the model itself, on rows of one
        # process
        self._extra_outputs = [
            n for n in composed.outputs if Output(n).kind not in ("logprob", "entropy") or Output(n).at
        ]
        if self._extra_outputs and self.accelerator.num_processes > 1:
            refuse(composed, [f"it reads the policy's {self._extra_outputs[0]}, which takes a single process"])
        self._services = TrainerServices(self, borrowed, answers)
        check_dataset(self, verdicts, names)
        for part in self.gxpo_method.signals.values():
            part.bind(self._services.tools(0))
        self._figures = StepFigures(composed) if controls(composed) else None
        self._loss_log = LossLog(self)
        if hasattr(self, "add_callback"):
            self.add_callback(_adapter_class("ParameterCheck")(self))
        for callback in getattr(getattr(self, "callback_handler", None), "callbacks", ()):
            if isinstance(callback, Watching):
                callback.attach(self)
        self._batch_by_mode: dict[str, ScoredBatch] = {}
        self._window: tuple[Any, Window] | None = None  # (key of the optimiser step, its rows)
        self._reward_batch: dict[str, Any] = {}  # rewards, tasks, truncation of the newest `_calculate_rewards`

    # ------------------------------------------------------------ advantages
    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        # the only place where TRL has each function's rewards by row; it keeps the weighted sum alone
        if self._grown is not None:
            return self._grown.to(self.accelerator.device, torch.float32)
        reward_table = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        cut = [not len(ids) or int(ids[-1]) not in ends for ids in completion_ids_list]
        self._reward_batch = {"rewards": reward_table, "tasks": self._services.note(inputs, prompts), "cut": cut}
        return reward_table

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """TRL's generation batch of this process, with the method's advantages in place of TRL's."""
        mode = "train" if self.model.training else "eval"
        grown = None
        if self._is_grown and mode == "train":
            steps = max(1, self._cycle // self.args.gradient_accumulation_steps)
            grown = trl_growth.grow(self, inputs, self.state.global_step // steps + 1, self._solutions)
            with trl_growth.as_generated(self, grown):
                output = super()._generate_and_score_completions(grown.inputs)
        else:
            output = super()._generate_and_score_completions(inputs)
        forward, model = self._get_per_token_logps_and_entropies, self.accelerator.unwrap_model(self.model)
        need_known(output, forward, model.get_base_model() if hasattr(model, "get_base_model") else model)
        rows, device = len(output["completion_ids"]), output["completion_ids"].device
        first = self.accelerator.process_index * rows
        batch = self._score(output, mode, grown)
        self._batch_by_mode[mode] = batch
        # TRL shuffles rows and cuts them into micro-batches: each carries its index along
        output[ROW] = torch.arange(first, first + rows, device=device)
        own_mask = own_tokens(output)
        advantages = torch.zeros(own_mask.shape, dtype=torch.float64)
        local_entries = batch.forest.entries_of(output[ROW].cpu())
        advantages[own_mask.cpu()] = batch.credit[local_entries]
        output["advantages"] = advantages.to(device, torch.float32)
        self._loss_log.advantages(batch)
        return output if grown is None else trl_growth.padded(output, self.args.steps_per_generation, ROW)

    def _score(self, output: Mapping[str, Any], mode: str, grown: trl_growth.Grown | None = None) -> ScoredBatch:
        """Forest, advantages and weights of a generation batch, over the rows of all processes.

        The stages are those of gxpo's own trainer, in its order: segment, shape, signals, advantages, targets, weights.
        """
        method, step = self.gxpo_method, self.state.global_step + 1
        pictured = self._services.see(output)
        tools = self._services.tools(step)
        own_mask = self._gather_rows(own_tokens(output).long()).bool()
        logprobs = output.get("sampling_per_token_logps")
        prompts = output if pictured is None else {**output, "prompt_ids": pictured.prompt_ids}
        if grown is None:
            forest = self._forest(prompts, own_mask, None if logprobs is None else self._gather_rows(logprobs), mode)
        else:
            forest = grown.forest
            self._services.note(grown.inputs, [row["prompt"] for row in grown.inputs], list(forest.task))
        if pictured is not None:
            pictured.set_forest(forest)
        # the old policy's log-probs; without vLLM's, or where vLLM lacks some, they are the sampler's as well
        values = {name: self._gather_rows(x)[own_mask].double() for name, x in self._old_outputs(output).items()}
        proximal = values.get("proximal_logprob")
        # a signal may compare these with other outputs of gxpo's forward pass: both have to round alike
        is_hot = self._has_other_temperatures(forest)
        if "model" in self._services.borrowed or is_hot:
            policy_outputs = (tools.learner or self._services.learner).outputs(forest, ("logprob", "entropy"))
            values |= {"proximal_logprob": policy_outputs["logprob"], "entropy": policy_outputs["entropy"]}
            proximal = policy_outputs["logprob"] if is_hot and proximal is not None else proximal
        start = values.get("proximal_logprob") if proximal is None else proximal
        if start is not None and grown is None:
            behaviour = torch.where(forest.path_behaviour_logprob.isnan(), start, forest.path_behaviour_logprob)
            column = forest.behaviour_logprob.index_copy(0, forest.path_token, behaviour)
            forest = forest.replace(behaviour_logprob=column)
        if method.segmenter is not None and grown is None:
            forest = method.segmenter(forest, SegmentTools(tools.decode, tools.learner))
        # evaluation batches are scored with the numbers of the last training step, and move no state
        if mode == "train":
            method.at(self._step // self._cycle + 1)
        forest = method.shaped(forest)
        if "hidden" in method.needs:
            values["hidden"] = tools.learner.hidden(forest)
        signals = asks.with_signal_parts(method, forest, values, tools)
        credit = method.advantages(forest, signals, step)
        signals = Signals.of(forest, {**signals, **method.targets(forest, signals, step)}, signals.axes)
        weight = method.token_weights(forest, credit, signals, step)
        if "importance_sampling_ratio" in output:  # TRL's own correction of vLLM's log-probs, per token or per row
            ratio = output["importance_sampling_ratio"].expand(own_tokens(output).shape)
            weight = weight * self._gather_rows(ratio)[own_mask].double()
        # an objective that reads no advantages still has rows without any gradient
        strength_P = credit if method.reads_credit else method.active(forest, credit, weight).double()
        share = zero_signal_groups(forest, strength_P).double().mean()
        self._metrics[mode]["gxpo/zero_signal_groups"].append(float(share))
        if mode == "train":
            method.observe(forest)
            for part in method.signals.values():
                for name, x in part.learn(forest, signals, tools).items():
                    self._metrics[mode][f"gxpo/{name}"].append(x)
        return ScoredBatch(forest, credit, weight, signals, proximal, step, grown is not None)

    def _has_other_temperatures(self, forest: Forest) -> bool:
        """Return True if TRL's forward pass, at one temperature, can't read all rows; ConfigError with a reference."""
        is_hot = self._is_grown and trl_growth.has_other_temperatures(forest, self.args.temperature)
        if is_hot and self.args.beta:
            refuse(self.gxpo_method, ["its rows have temperatures of their own, TRL's reference one: set beta=0"])
        return is_hot

    def _old_outputs(self, output: Mapping[str, Any]) -> dict[str, Tensor]:
        """Log-probs of the policy before the update, its entropies and the reference's log-probs, (B, T) each.

        Only those that the method reads; a forward pass is run where TRL's batch lacks them.
        """
        outputs = {}
        method = self.gxpo_method
        entropy = "entropy" in method.needs
        compared = "logprobs" in self._reads or method.kl_reward is not None or "proximal_logprob" in method.needs
        compared |= any(getattr(term, "ratio_over", "") == "behaviour" for term in method.terms.values())
        if "old_per_token_logps" in output:
            outputs["proximal_logprob"] = output["old_per_token_logps"]
        if (entropy or (compared and not outputs)) and "model" not in self._services.borrowed:
            with torch.no_grad():
                size = self.args.per_device_train_batch_size
                logprob, spread, _ = self._outputs(self.model, output, batch_size=size)
            outputs.setdefault("proximal_logprob", logprob)
            outputs["entropy"] = spread
        if "ref_per_token_logps" in output:
            outputs["reference_logprob"] = output["ref_per_token_logps"]
        return outputs

    def _forest(self, output: Mapping[str, Any], own_mask: Tensor, logprobs: Tensor | None, mode: str) -> Forest:
        """Forest of the rollouts of all processes, with rewards, tasks and truncation."""
        size = self.num_generations if mode == "train" else self.num_generations_eval
        columns = {n: self._gather_rows(output[n], is_left_padded=True) for n in ("prompt_ids", "prompt_mask")}
        columns |= {n: self._gather_rows(output[n]) for n in ("completion_ids", "completion_mask")}
        table, weights = self._reward_batch["rewards"].double().cpu(), self.reward_weights.cpu()
        rewards = Rewards(table, weights, self.reward_func_names, self.success_at)
        forest = rollouts(columns, own_mask, logprobs, rewards, size, getattr(self.args, "temperature", 1.0))
        cut = self.accelerator.gather(torch.tensor(self._reward_batch["cut"], device=output["prompt_ids"].device))
        tasks = self._reward_batch["tasks"]
        if self.accelerator.num_processes > 1:
            tasks = need("accelerate.utils", "trl").gather_object(tasks)
        return forest.replace(task=tasks, truncated=cut.cpu().bool())

    def _gather_rows(self, x: Tensor, *, is_left_padded: bool = False) -> Tensor:
        """Gather the rows of all processes onto the CPU, padded with 0 to one width."""
        x = self.accelerator.pad_across_processes(x, dim=1, pad_first=is_left_padded)
        return self.accelerator.gather(x.contiguous()).detach().cpu()

    # ------------------------------------------------------------ objective
    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Loss of a micro-batch: its share of the objective of the whole optimiser step; the shares sum to it.

        Each process's share is multiplied by their number, since gradients are averaged over processes.
        """
        if ROW not in inputs:
            raise ConfigError(f"{ROW!r} is not in the batch: a subclass must pass on what the trainer has put there")
        mode = "train" if self.model.training else "eval"
        window = self._window_of(model, inputs, mode)
        world_size = self.accelerator.num_processes
        rows, device = inputs[ROW].cpu(), inputs["completion_ids"].device
        rows = rows[rows >= 0]  # others fill the batch up
        places = window.places(rows)
        entries = window.batch.forest.entries_of(places)
        outputs, aux = self._live_outputs(model, inputs, window.batch, places)
        parts = self.args.gradient_accumulation_steps if mode == "train" else 1
        # terms of single rows: L with the other rows' weights at 0. Terms that couple rows: sum x dL/dx, which has the
        # gradient of L at these rows, and for the log an equal part of L's value.
        if window.slope is None:
            share = self._share(window.batch, outputs, places, entries)
            detached = {name: x.detach() for name, x in outputs.items()}
            self._loss_log.figures(mode, self._batch_by_mode[mode].select(rows), detached)
            micro_batch = (
                self._micro_batch(window.batch, detached, places, entries) if self._loss_log.has_bonus else None
            )
            bonus = 0.0 if micro_batch is None else self._loss_log.bonus(*micro_batch)
        else:
            linear_share = torch.stack([(window.slope[name][entries] * x).sum() for name, x in outputs.items()]).sum()
            share = linear_share - linear_share.detach() + window.value / (parts * world_size)
            bonus = window.bonus / (parts * world_size)
        self._loss_log.policy_loss(mode, float(share.detach()) - bonus)
        # figures that TRL logs in its own _compute_loss, which this one replaces
        entropy_sums = torch.stack([outputs["entropy"].detach().sum(), torch.tensor(float(entries.numel()))]).to(device)
        total, count = self.accelerator.reduce(entropy_sums.float(), reduction="sum").tolist()
        self._metrics[mode]["entropy"].append(total / max(count, 1.0))
        loss = (share * world_size).to(device, torch.float32)
        if mode == "train" and self._figures is not None:
            self._follow_figures(window, entries, outputs)
        if mode == "train" and (self._step + 1) % parts == 0:
            self._loss_log.coefficient()
        if aux is not None:
            loss = loss + self.router_aux_loss_coef * aux / parts
            self._metrics[mode]["aux_loss"].append(float(self.accelerator.gather(aux.detach()).mean()))
        return loss

    def _live_outputs(
        self, model: Any, inputs: Mapping[str, Any], batch: ScoredBatch, places: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Policy outputs at a micro-batch's tokens with their gradient, float64, and the routers' auxiliary loss.

        They come from TRL's forward pass, or from gxpo's where the method reads others than log-probs and entropies.
        """
        if self._extra_outputs or self._has_other_temperatures(batch.forest):
            if self.aux_loss_enabled:
                raise ConfigError(
                    f"{self.gxpo_method.name} in TRL does not see the routers: set router_aux_loss_coef=0"
                )
            batch_rows = batch.select(places)
            return self._services.learner.outputs_with_grad(
                batch_rows.forest, self._names, self._constants(batch_rows)
            ), None
        own_mask = own_tokens(inputs)
        logprob, entropy, aux = self._outputs(model, inputs, aux=self.aux_loss_enabled)
        outputs = {"logprob": logprob[own_mask].cpu().double(), "entropy": entropy[own_mask].cpu().double()}
        return outputs, aux if self.aux_loss_enabled else None

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.gxpo_method.outputs, "entropy")))

    def _constants(self, batch: ScoredBatch) -> dict[str, Tensor]:
        """Signals that policy outputs are computed with (`TermPart.constants`)."""
        names = dict.fromkeys(n for term in self.gxpo_method.terms.values() for n in getattr(term, "constants", ()))
        return {name: batch.signals[name] for name in names}

    def _follow_figures(self, window: Window, entries: Tensor, outputs: Mapping[str, Tensor]) -> None:
        """Collect a micro-batch's figures; after a generation batch, move the coefficients that follow them."""
        figures, every = self._figures, self.args.gradient_accumulation_steps
        assert figures is not None
        figures.add(window.batch, entries, outputs)
        if (self._step + 1) % every:
            return
        figures.close(window.batch, self._sum_processes)
        if (self._step + 1) % self._cycle == 0:
            batch = self._batch_by_mode["train"]
            generation = (self._step + 1) // self._cycle
            for name, x in figures.adjust(batch.forest, generation).items():
                self._metrics["train"][f"gxpo/{name}"].append(x)

    def _sum_processes(self, x: Tensor) -> Tensor:
        """Sum over processes."""
        if self.accelerator.num_processes == 1:
            return x
        return self.accelerator.reduce(x.to(self.accelerator.device, torch.float32), reduction="sum").cpu().double()

    def _share(self, batch: ScoredBatch, outputs: Mapping[str, Tensor], places: Tensor, entries: Tensor) -> Tensor:
        """Objective with every other row's weight 0: those rows count in its denominators alone."""
        micro_batch, policy = self._micro_batch(batch, outputs, places, entries)
        return self.gxpo_method.objective(
            micro_batch.forest, policy, micro_batch.credit, micro_batch.weight, micro_batch.signals, micro_batch.step
        )

    def _micro_batch(
        self, batch: ScoredBatch, x: Mapping[str, Tensor], places: Tensor, entries: Tensor
    ) -> tuple[ScoredBatch, PolicyTokens]:
        """Optimiser step in which only the rows at `places` have a weight, and the policy's outputs there, 0 elsewhere.

        x  outputs at `entries`, the path tokens of these rows
        """
        forest = batch.forest
        columns = {
            name: torch.zeros(forest.n_entries, dtype=torch.float64).index_copy(0, entries, v) for name, v in x.items()
        }
        in_batch_R = torch.zeros(forest.n_trajectories, dtype=torch.float64).index_fill(0, places, 1.0)
        masked = forest.replace(weight=forest.weight * in_batch_R)
        weight = batch.weight * masked.to_path(in_batch_R, "R")
        return dataclasses.replace(batch, forest=masked, weight=weight), batch.policy(columns)

    def _window_of(self, model: Any, inputs: Mapping[str, Any], mode: str) -> Window:
        """Rows of the optimiser step that a micro-batch belongs to, on every process; made once a step."""
        batch = self._batch_by_mode[mode]
        if mode == "train":
            every, place = self.args.gradient_accumulation_steps, self._step % self.args.steps_per_generation
            # TRL buffers a generation batch as a list of micro-batches: consecutive ones make an optimiser step
            batches = self._buffered_inputs[place // every * every :][:every]
            key = (id(batch), self._step // every)
            if self._window is not None and self._window[0] == key:
                return self._window[1]
        else:
            batches, key = [inputs], None
        local_rows = torch.cat([b[ROW] for b in batches])
        gathered_rows = self.accelerator.gather(local_rows).cpu()
        gathered_rows = gathered_rows[gathered_rows >= 0]
        rows = gathered_rows.sort().values
        window = Window(batch.select(rows), rows)
        if self.gxpo_method.couples in ("group", "step"):
            window = self._coupled_window(model, window, batches, gathered_rows, mode)
        self._window = None if key is None else (key, window)
        return window

    def _coupled_window(
        self, model: Any, window: Window, batches: Iterable[Any], every_row: Tensor, mode: str
    ) -> Window:
        """Window with dL/dx for terms that couple rows, from a first forward pass of all rows without gradient."""
        if self._extra_outputs or self._has_other_temperatures(window.batch.forest):
            window_rows = window.batch
            x = self._services.learner.outputs(
                window_rows.forest, self._names, constants=self._constants(window_rows) or None
            )
            return self._with_slope(window, x, mode)
        # micro-batches have widths of their own, and processes rows in another order: both are undone after the gather
        width = max(b["completion_ids"].shape[1] for b in batches)
        columns: dict[str, list[Tensor]] = {"logprob": [], "entropy": [], "own": []}
        with torch.no_grad():
            for batch in batches:
                logprob, entropy, _ = self._outputs(model, batch)
                for name, x in (
                    ("logprob", logprob),
                    ("entropy", entropy),
                    ("own", own_tokens(batch).to(logprob.dtype)),
                ):
                    columns[name].append(torch.nn.functional.pad(x, (0, width - x.shape[1])))
        gathered = {name: self._gather_rows(torch.cat(x)) for name, x in columns.items()}
        own_mask = gathered.pop("own").bool()
        forest = window.batch.forest
        entries = forest.entries_of(window.places(every_row))
        x = {n: torch.zeros(forest.n_entries, dtype=torch.float64).index_copy(0, entries, v[own_mask].double())
             for n, v in gathered.items()}  # fmt: skip
        return self._with_slope(window, x, mode)

    def _with_slope(self, window: Window, x: Mapping[str, Tensor], mode: str) -> Window:
        """Add L(x) and dL/dx to a window."""
        batch, forest, method = window.batch, window.batch.forest, self.gxpo_method

        def objective(x: Mapping[str, Tensor]) -> Tensor:
            return method.objective(forest, batch.policy(x), batch.credit, batch.weight, batch.signals, batch.step)

        self._loss_log.figures(mode, batch, x)
        bonus = self._loss_log.bonus(batch, batch.policy(x))
        return dataclasses.replace(window, slope=gradient_of(objective, x), value=float(objective(x)), bonus=bonus)

    def _outputs(self, model: Any, inputs: Mapping[str, Any], *, aux: bool = False, **options: Any) -> Any:
        """Run TRL's forward pass: (log-probs (B, T), entropies (B, T), auxiliary loss) of the completions."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        # a vision model is called with further columns of the batch
        modalities = {name: inputs[name] for name in MODALITIES if inputs.get(name) is not None}
        return self._get_per_token_logps_and_entropies(
            model, ids, mask, inputs["completion_ids"].size(1),
            compute_entropy=True, compute_aux_loss=aux, **options, **modalities,
        )  # fmt: skip
