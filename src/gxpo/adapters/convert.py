"""Conversion of a TRL configuration, script or notebook to a gxpo configuration that computes the same."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.adapters import convert_script, trl_launch
from gxpo.adapters.convert_script import SourceSettings, Value
from gxpo.adapters.trl_config import DEFAULTS, with_defaults
from gxpo.adapters.trl_fields import (
    COLUMNS,
    DIFFERENCES,
    ELSEWHERE,
    LOGGERS,
    OF_RLOO,
    OPEN_KEYS,
    REASONS,
    REWARDS,
    SCHEDULES,
    WITHOUT_EFFECT,
    check_value,
)
from gxpo.adapters.trl_keys import LOSSES, WITHOUT_KEY
from gxpo.adapters.trl_settings import translate_settings
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError
from gxpo.environments.tasks.epochs import KINDS
from gxpo.parts.definition import show


@dataclass(frozen=True)
class ConvertedKeys:
    """Keys of gxpo, dotted and in order; a key whose value is not known is `OPEN`.

    origins  where each key comes from; of an open key, why its value is not known
    notes    (where, what has no counterpart)
    """

    keys: Mapping[str, Any]
    origins: Mapping[str, str]
    notes: tuple[tuple[str, str], ...]
    trainer: str = "TRL 1.16"

    @property
    def open(self) -> dict[str, str]:
        """Keys that are to be filled in before a training, each with the reason why its value is not known."""
        return {key: self.origins.get(key, "") for key, value in self.keys.items() if yamltext.is_open(value)}

    def text(self, source: str) -> str:
        """Return the configuration as YAML, followed by comments on settings that are not carried over."""
        heading = yamltext.comment(f"what {source} computes in {self.trainer}, for gxpo train")
        lines = [heading]
        if self.open:
            lines.append(yamltext.comment(f"to be filled in ({yamltext.OPEN}): {', '.join(self.open)}"))
        lines.append(yamltext.dump(self.keys, self.origins))
        if self.notes:
            lines.append("# not carried over:")
            lines += [yamltext.comment(f"  {where}: {note}" if where else f"  {note}") for where, note in self.notes]
        return "\n".join(lines).rstrip("\n") + "\n"


def convert_trl(path: str | Path, *, processes: int = 1) -> ConvertedKeys:
    """Convert a YAML file of `trl grpo`, a script or notebook, or a launch of one (.sh); nothing is run.

    processes  number that TRL is launched with: its batch sizes are per process; ConfigError for an unreadable file
    """
    if " " in str(path) and not os.path.isfile(path):  # a command line may be longer than a name of a file can be
        source, script, count = trl_launch.of_line(str(path))
        return Conversion(source, script, processes if processes != 1 else count).converted()
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    try:
        if path.suffix in (".sh", ".bash", ".slurm"):
            source, script, processes = trl_launch.read(path, processes)
            return Conversion(source, script, processes).converted()
        source = convert_script.read(path) if path.suffix in (".py", ".ipynb") else trl_launch.read_yaml(path)
        return Conversion(source, path, processes).converted()
    except ConfigError as error:
        raise error if str(path) in str(error) else ConfigError(f"{path}: {error}") from None


class Conversion:
    """Conversion of one source; its methods fill keys, origins and notes in the order in which they are printed."""

    def __init__(self, source: SourceSettings, path: Path, processes: int) -> None:
        self.source, self.path, self.processes = source, path, processes
        self.is_rloo = source.kind == "RLOO"
        self.default = f"{source.system.split()[0]}'s default"  # of fields that nothing states, where it is not gxpo's
        # a value that TRL itself would refuse is open, and so is one that only a run gives
        for name, setting in source.settings.items():
            source.settings[name] = check_value(name, setting)
        self.open = {name: v for name, v in source.settings.items() if v.is_open}
        self.settings = {name: v.value for name, v in source.settings.items() if not v.is_open}
        self.args = with_defaults({**(OF_RLOO if self.is_rloo else {}), **self.settings})
        self.keys: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.notes: list[tuple[str, str]] = []

    def converted(self) -> ConvertedKeys:
        stages = (self._task, self._method, self._batches, self._sampling, self._optimiser, self._model, self._outputs)
        for stage in (*stages, self._unread_settings):
            stage()
        return ConvertedKeys(self.keys, self.origins, (*self.source.open, *self.notes), self.source.system)

    # ------------------------------------------------------------ output
    def _set(self, key: str, value: Any, *fields: str, also: tuple[str, ...] = ()) -> None:
        """Set a key, with the fields of TRL that it comes from and where they were given; OPEN if one is not known.

        also  fields that the value depends on too
        """
        settings = self.source.settings
        depends = [f for f in dict.fromkeys((*fields, *also)) if f in self.open]
        if depends:
            self.keys[key] = yamltext.OPEN
            self.origins[key] = "; ".join(f"{f}, {self.open[f].where}: {self.open[f].note}" for f in depends)
            return
        # what else may be set may set a field that the value depends on
        if self.source.extra_fields and (missing := [f for f in dict.fromkeys((*fields, *also)) if f not in settings]):
            self.keys[key], self.origins[key] = yamltext.OPEN, f"{', '.join(missing)}, {self.source.extra_fields}"
            return
        values = [settings[f] for f in fields if f in settings]
        places = ", ".join(dict.fromkeys(v.where for v in values))
        options = list(dict.fromkeys(settings[f].note for f in (*fields, *also) if f in settings and settings[f].note))
        if self.source.is_parsed:
            options += [f"--{f}" for f in fields if f not in settings]
        unless = f" unless {', '.join(options)} says otherwise" if options else ""
        self.keys[key] = value
        self.origins[key] = f"{', '.join(fields)}, {places or self.default}{unless}" if fields else ""

    def _part(self, key: str, name: str, value: Any = None) -> None:
        part = self.source.parts[name]
        self.keys[key] = part.value if value is None or part.is_open else value
        note = part.note if part.is_open else f"unless {part.note} says otherwise" if part.note else ""
        between = ": " if part.is_open and part.where else " " if note else ""
        self.origins[key] = f"{part.where}{between}{note}"

    def _open(self, key: str, reason: str) -> None:
        self.keys[key], self.origins[key] = yamltext.OPEN, reason

    def _note(self, field: str, note: str) -> None:
        setting = self.source.settings.get(field) or self.source.parts.get(field)
        self.notes.append((setting.where if setting is not None else "", note))

    # ------------------------------------------------------------ stages
    def _task(self) -> None:
        parts = self.source.parts
        if "model" in parts:
            self._part("model", "model")
        else:
            self._open("model", "none is named")
        files = parts.get("data_files")
        if files is not None and isinstance(files.value, str) and files.value.endswith(".jsonl"):
            self._part("task", "data_files")
        elif "dataset" not in parts:
            self._open("task", "no data are named")
        elif parts["dataset"].is_open or str(parts["dataset"].value).endswith(KINDS):
            self._part("task", "dataset")
        elif files is not None or str(parts["dataset"].value) in ("json", "csv", "parquet", "text", "arrow"):
            self._open("task", f"{parts['dataset'].where}: files of {parts['dataset'].value}: write them to a .jsonl")
        else:
            self._part("task", "dataset", f"dataset:{parts['dataset'].value}")
            for name, option in (("dataset_config", "config"), ("split", "split")):
                if name in parts and isinstance(parts[name].value, str):
                    self._part(f"tasks.options.{option}", name)
            for name in ("revision", "data_dir"):
                if name in parts:
                    self._note(name, f"load_dataset({name}={parts[name].value!r}): no counterpart")
        self._rewards()

    def _rewards(self) -> None:
        """Convert the rewards: gxpo's own by name, functions of the script by its file, others as my_rewards.py's."""
        weights = self.settings.get("reward_weights") or [1.0] * len(self.source.rewards)
        weight_by_reward: dict[str, Any] = {}
        unknown = "" if self.source.rewards else "none is named"
        if len(weights) != len(self.source.rewards):
            self._note("reward_weights", f"{len(weights)} reward_weights for {len(self.source.rewards)} rewards")
        for (kind, value), weight in zip(self.source.rewards, weights, strict=False):
            name, weight = str(value.value).rpartition(".")[2], float(weight)
            if kind == "open":
                unknown = unknown or f"{value.where}: {value.note}"
            elif kind == "trl" and value.value in REWARDS:
                weight_by_reward[REWARDS[value.value]] = weight
            elif kind == "function" and self.path.suffix == ".py" and self.source.is_guarded:
                weight_by_reward[f"{self.path}:{name}"] = weight
            elif kind == "model" or not name.isidentifier():
                description = "a reward model, see docs/judges.md" if kind == "model" else "no function of a file"
                unknown = unknown or f"{value.where}: {value.value} is {description}"
            else:
                weight_by_reward[f"my_rewards.py:{name}"] = weight
                kinds = {"trl": "of trl.rewards", "function": f"importing {self.path.name} would train"}
                description = kinds.get(kind, "of another file")
                self.notes.append((value.where, f"reward {value.value}: {description}: put it into my_rewards.py"))
            if value.note and kind != "open":
                self.notes.append((value.where, f"reward {value.value}: set with {value.note}"))
        where = self.source.rewards[0][1].where if self.source.rewards else ""
        if "reward_weights" in self.open:
            weight_by_reward = dict.fromkeys(weight_by_reward, yamltext.OPEN)
        if unknown:
            self._open("reward", unknown)
        elif len(weight_by_reward) == 1 and set(weight_by_reward.values()) == {1.0}:
            self.keys["reward"], self.origins["reward"] = next(iter(weight_by_reward)), where
        else:
            self.keys["scoring.weights"], self.origins["scoring.weights"] = weight_by_reward, where

    def _method(self) -> None:
        """Find the method, and the keys in which TRL's settings differ from it."""
        # settings without a key are taken out first, or the translation would refuse the whole configuration
        settings_given, dropped = {k: v for k, v in self.settings.items() if v is not None}, []
        if self.is_rloo:
            return self._rloo()
        for name, instead in WITHOUT_KEY.items():
            if settings_given.get(name, DEFAULTS.get(name)) != DEFAULTS.get(name):
                dropped.append((name, instead))
                del settings_given[name]
        # a loss of its own is a method of its own; other losses are grpo@trl with another aggregate
        spec, loss = "grpo@trl", settings_given.get("loss_type", DEFAULTS["loss_type"])
        if loss in LOSSES:
            spec = LOSSES[loss]
        elif loss not in ("grpo", "bnpo", "dapo", "dr_grpo"):
            self._note("loss_type", f"loss_type={loss!r}: not one of TRL 1.16's")
            settings_given.pop("loss_type")
        if settings_given.get("multi_objective_aggregation", "") == "normalize_then_sum":
            spec = "gdpo_multi@trl"
            settings_given.pop("multi_objective_aggregation")
        method_part = self.source.parts.get("method")
        if method_part is not None:
            spec = str(method_part.value)
        try:
            composed = translate_settings(with_defaults(settings_given), spec, {})
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None
        if method_part is not None:
            self._part("method", "method", spec)
        else:
            self._set("method", spec, "loss_type")
        # the translation notes the field as a key's origin: these are the keys to print
        for key, setting in composed.keys.items():
            field = setting.origin.removeprefix("GRPOConfig.")
            if field != setting.origin:
                value = setting.value if isinstance(setting.value, (int, float, str, bool)) else show(setting.value)
                self._set(key, value, field, also=("epsilon_high",) if key == "objective.clip_high" else ())
        if spec == "gdpo_multi@trl" and (weights := settings_given.get("reward_weights")):
            self._set("credit.weights", list(weights), "reward_weights")
        for name, instead in dropped:
            self._note(name, f"{name}={self.settings[name]!r}: {instead}")
        if loss == "bnpo":
            self._note("loss_type", "bnpo: TRL takes the mean of the micro-batches' means, gxpo of the whole step")
        self._differences()

    def _rloo(self) -> None:
        """Find the method of RLOOConfig, and the keys in which its settings differ from it."""
        is_whitened = self.settings.get("normalize_advantages")
        self._set("method", "reinforce_pp_baseline@trl" if is_whitened else "rloo@trl", "normalize_advantages")
        if "beta" in self.source.settings:
            self._set("objective.kl.coef", float(self.args.beta), "beta")
        for field, keys in (("epsilon", ("clip_low", "clip_high")), ("epsilon_high", ("clip_high",))):
            if field in self.source.settings and getattr(self.args, field) is not None:
                for key in keys:
                    self._set(f"objective.{key}", float(getattr(self.args, field)), field)
        self._differences()

    def _differences(self) -> None:
        """Note what TRL does to rows or to the reference, and gxpo does not."""
        for name, instead in DIFFERENCES.items():
            if getattr(self.args, name):
                self._note(name, f"{name}: {instead}")

    def _batches(self) -> None:
        """Convert batch sizes: TRL counts rows per process, gxpo tasks of whole groups per step."""
        a = self.args
        micro = a.per_device_train_batch_size * self.processes
        optimiser = micro * a.gradient_accumulation_steps
        rows = a.generation_batch_size or micro * (a.steps_per_generation or a.gradient_accumulation_steps)
        group = a.num_generations or 1
        if self.source.unsloth and micro % group:  # it makes room for whole groups
            micro = math.ceil(micro / group) * group
            optimiser = rows = micro * a.gradient_accumulation_steps
            self._note("per_device_train_batch_size", f"unsloth makes it {micro}: whole groups of num_generations")
        self._set("rollout.group_size", group, "num_generations")
        sizes = ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size",
                 "per_device_train_batch_size", "num_generations")  # fmt: skip
        # fields that cut a generation batch into minibatches: none where nothing makes it larger than an update
        is_in_rows = a.generation_batch_size or "generation_batch_size" in self.open or self.source.extra_fields
        is_whole = not (is_in_rows or a.steps_per_generation or "steps_per_generation" in self.open)
        self.cuts = () if is_whole else sizes[: 4 if is_in_rows else 3]
        fields = ["per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"]
        fields = [f for f in fields if f in self.settings] or fields[:2]
        if a.generation_batch_size:
            fields = ["generation_batch_size"]
        # a step of gxpo is a generation batch: minibatches and epochs of it are TRL's optimiser steps
        self._set("tasks.per_step", rows // group, *fields, also=sizes)
        # a batch that is too small for a group is usually a launch on several processes, whose number is no setting
        if self.keys["tasks.per_step"] != yamltext.OPEN:
            self.origins["tasks.per_step"] += f", {self.processes} process{'es' * (self.processes != 1)}"
            if rows % group:
                reason = f"a generation batch of {rows} rows holds no whole groups of {group}: say --processes"
                self._open("tasks.per_step", reason)
        self.minibatches = max(1, rows // optimiser)
        is_cut = any(f in self.open for f in ("steps_per_generation", "generation_batch_size"))
        if self.minibatches > 1 or is_cut:
            cut = ("steps_per_generation", "gradient_accumulation_steps")
            self._set("update.minibatches", self.minibatches, *cut, also=self.cuts)
            if rows // group < self.minibatches or (rows // group) % self.minibatches:
                self._note("steps_per_generation", "minibatches are of whole groups here: TRL cuts through them")
        if a.num_iterations > 1:
            self._set("update.epochs", a.num_iterations, "num_iterations")
        self.per_batch = self.minibatches * a.num_iterations
        if a.max_steps > 0:
            steps = math.ceil(a.max_steps / self.per_batch)
            self._set("trainer.steps", steps, "max_steps", also=("num_iterations", *self.cuts))
        elif "max_steps" in self.open or self.source.extra_fields:
            self._set("trainer.steps", 1, "max_steps", also=("num_train_epochs",))
        else:
            epochs = f"{a.num_train_epochs:g}"
            setting = self.source.settings.get("num_train_epochs")
            place = f", {setting.where}" if setting is not None else f", {self.default}"
            by_rows = f"{epochs}{place}: {epochs} x the rows of the data / {rows / group:g}"
            unknown = f"{place}: {setting.note}" if setting is not None and setting.is_open else ""
            self._open("trainer.steps", f"num_train_epochs{unknown or f'={by_rows}'}")

    def _sampling(self) -> None:
        a = self.args
        self._set("sampling.max_new_tokens", a.max_completion_length, "max_completion_length")
        for name in ("temperature", "top_p", "top_k"):
            value = getattr(a, name)
            if value is not None and value != DEFAULTS[name] and not (name == "top_k" and value < 0):
                self._set(f"sampling.{name}", value if name == "top_k" else float(value), name)
        options = dict(a.generation_kwargs) if isinstance(a.generation_kwargs, dict) else {}
        if stops := [options.pop(k) for k in ("stop", "stop_strings") if k in options]:
            texts = [t for s in stops for t in ([s] if isinstance(s, str) else s)]
            self._set("sampling.stop", texts, "generation_kwargs")
        for name, value in options.items():
            if name in ("temperature", "top_p", "top_k"):  # they take the place of the field
                self._set(f"sampling.{name}", value, "generation_kwargs")
            elif name not in ("include_stop_str_in_output",):
                self._note("generation_kwargs", f"generation_kwargs[{name!r}]={value!r}: no counterpart")
        for name in ("min_p", "repetition_penalty"):
            if getattr(a, name) not in (DEFAULTS[name], None):
                self._note(name, f"{name}={getattr(a, name)!r}: gxpo samples with temperature, top_k and top_p alone")
        if isinstance(a.chat_template_kwargs, dict):
            self._set("chat.kwargs", a.chat_template_kwargs, "chat_template_kwargs")
        if a.use_vllm:
            self._set("sampling.engine", "vllm", "use_vllm")
            self._mismatch()

    def _mismatch(self) -> None:
        """Convert TRL's correction of vLLM's log-probs."""
        a = self.args
        if not a.vllm_importance_sampling_correction:
            return
        fields = [f"vllm_importance_sampling_{name}" for name in ("correction", "mode", "clip_max")]
        cap, floor = a.vllm_importance_sampling_clip_max, a.vllm_importance_sampling_clip_min
        if a.vllm_importance_sampling_mode == "token_truncate" and cap and not floor:
            self._set("weight.mismatch", "truncated", *fields)
            self._set("weight.mismatch.cap", float(cap), fields[-1])
        else:
            mode = f"{a.vllm_importance_sampling_mode!r}, clips {floor}, {cap}"
            ours = "gxpo has weight.mismatch=truncated (token_truncate) and mismatch_mask"
            self._note(fields[1], f"vllm_importance_sampling_mode={mode}: {ours}")

    def _optimiser(self) -> None:
        """Convert the optimiser: AdamW with a schedule of the learning rate and warm-up."""
        a = self.args
        self._set("optim.lr", float(a.learning_rate), "learning_rate")
        betas = [float(a.adam_beta1), float(a.adam_beta2)]
        if betas != [0.9, 0.999]:
            self._set("optim.betas", betas, "adam_beta1", "adam_beta2")
        if a.weight_decay:
            self._set("optim.weight_decay", float(a.weight_decay), "weight_decay")
        if a.max_grad_norm != DEFAULTS["max_grad_norm"]:
            self._set("optim.max_grad_norm", float(a.max_grad_norm or 0.0), "max_grad_norm")
        shape = SCHEDULES.get(str(a.lr_scheduler_type))
        if shape is None:
            self._note("lr_scheduler_type", f"lr_scheduler_type={a.lr_scheduler_type!r}: constant, linear and cosine")
        elif shape != "constant":
            self._set("optim.schedule", shape, "lr_scheduler_type")
        # TRL takes a warm-up below 1 as a share of the run, whose length may be open
        warmup, total = a.warmup_steps or 0, a.max_steps
        ratio = a.warmup_ratio or (warmup if 0 < warmup < 1 else 0)
        if "warmup_steps" in self.open or "warmup_ratio" in self.open or (ratio and "max_steps" in self.open):
            self._set("optim.warmup_steps", 0, "warmup_steps", also=("warmup_ratio", "max_steps"))
        elif ratio and total > 0:
            self._set("optim.warmup_steps", math.ceil(ratio * total), "warmup_ratio", "warmup_steps")
        elif ratio:
            self._note("warmup_ratio", f"warmup_ratio={ratio:g}: optim.warmup_steps is this share of the run's updates")
        elif warmup:
            self._set("optim.warmup_steps", int(warmup), "warmup_steps")
        if not str(a.optim).startswith("adamw_torch"):
            self._note("optim", f"optim={a.optim!r}: gxpo steps with AdamW")
        if a.adam_epsilon != DEFAULTS["adam_epsilon"]:
            self._note("adam_epsilon", f"adam_epsilon={a.adam_epsilon:g}: 1e-8 here")

    def _model(self) -> None:
        parts, a = self.source.parts, self.args
        init = self.settings.get("model_init_kwargs")
        init = dict(init) if isinstance(init, dict) else {}
        dtype_part = parts.get("torch_dtype") or parts.get("dtype")
        dtype = init.pop("torch_dtype", init.pop("dtype", None))
        dtype = dtype_part.value if dtype_part else dtype
        low = str(dtype) == "bfloat16" or (a.bf16 and not a.fp16)
        self._set("learner.dtype", "bfloat16" if low else "float32", "bf16", also=("fp16", "model_init_kwargs"))
        if dtype_part is not None and dtype_part.is_open:
            self._open("learner.dtype", f"{dtype_part.where}: {dtype_part.note}")
        for name, value in init.items():
            if name not in convert_script.MODEL_ARGUMENTS and value not in (None, False, "main"):
                description = convert_script.LOADING.get(name, "no counterpart")
                self._note("model_init_kwargs", f"model_init_kwargs[{name!r}]={value!r}: {description}")
        if a.fp16 or str(dtype) == "float16":
            self._note("fp16", "fp16: gxpo trains in float32 or bfloat16")
        elif low and str(dtype) != "bfloat16":
            self._note("bf16", "bf16: TRL keeps float32 weights and multiplies in bfloat16; learner.dtype=bfloat16 "
                                "updates float32 copies of bfloat16 weights")  # fmt: skip
        if self.settings.get("gradient_checkpointing", a.gradient_checkpointing):
            self._set("learner.recompute", True, "gradient_checkpointing")
        if (peft := parts.get("peft")) is not None:
            self._lora(peft)
        for name in ("load_in_4bit", "load_in_8bit"):
            if name in parts and parts[name].value:
                self._note(name, f"{name}: {convert_script.LOADING[name]}")

    def _lora(self, peft: Value) -> None:
        if peft.is_open:
            for name in ("rank", "alpha", "targets"):
                self._open(f"learner.lora_{name}", f"{peft.where}: {peft.note}")
            return
        # peft's own defaults where the adapter states nothing; target modules by the type of the model
        lora = {"r": 8, "lora_alpha": 8, **peft.value}
        keys = {"learner.lora_rank": lora["r"], "learner.lora_alpha": lora["lora_alpha"],
                "learner.lora_targets": lora.get("target_modules")}  # fmt: skip
        for (key, value), kind in zip(keys.items(), (int, float, None), strict=True):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            is_known = is_number if kind is not None else not yamltext.is_open(value)
            if value is not None:
                self.keys[key] = (kind(value) if kind is not None else value) if is_known else yamltext.OPEN
                self.origins[key] = f"{peft.where}{f': {peft.note}' if peft.note else ''}"
        if "learner.lora_targets" not in self.keys:
            self.notes.append((peft.where, "target_modules: peft's choice for the model; gxpo adapts all-linear"))
        for name, value in lora.items():
            if name in convert_script.PEFT[3:] and value and not (name == "bias" and value == "none"):
                self.notes.append((peft.where, f"{name}={value!r}: gxpo's LoRA has none"))

    def _outputs(self) -> None:
        """Convert what the run writes: its directory, checkpoints, evaluations, loggers."""
        a = self.args
        self._set("seed", int(a.seed), "seed")
        if isinstance(self.settings.get("output_dir"), str):
            self._set("out", f"runs/{Path(a.output_dir).name}", "output_dir")  # TRL's own run stays readable
        if a.save_strategy == "no":
            self._set("trainer.checkpoint_every", 0, "save_strategy")
        elif a.save_strategy == "steps" and isinstance(a.save_steps, int) and a.save_steps >= 1:
            self._every("trainer.checkpoint_every", a.save_steps, "save_steps")
        else:
            self._note("save_strategy", f"save_strategy={a.save_strategy!r}: set trainer.checkpoint_every")
        if a.save_total_limit:
            self._set("trainer.keep_checkpoints", int(a.save_total_limit), "save_total_limit")
        every = a.eval_steps or self.settings.get("logging_steps", 10)  # TRL evaluates when it logs
        if a.eval_strategy == "steps" and isinstance(every, (int, float)) and every >= 1:
            self._every("eval.every", int(every), "eval_strategy", "eval_steps")
        elif a.eval_strategy != "no":
            self._note("eval_strategy", f"eval_strategy={a.eval_strategy!r}: set eval.every")
        loggers = a.report_to if isinstance(a.report_to, list) else [a.report_to]
        if supported := [name for name in loggers if name in LOGGERS]:
            self._set("trainer.callbacks", supported, "report_to")
        for name in loggers:
            if name not in ("none", None, "all", *LOGGERS):
                self._note("report_to", f"report_to={name!r}: gxpo has {', '.join(LOGGERS)}, and callbacks")

    def _every(self, key: str, updates: int, *fields: str) -> None:
        self._set(key, max(1, updates // self.per_batch), *fields, also=("num_iterations", *self.cuts))

    def _unread_settings(self) -> None:
        """Note the settings that have no counterpart, unless they change nothing that is computed."""
        for name, value in self.source.settings.items():
            if value.is_open:
                self._unread_open(name, value)
            elif name in COLUMNS and isinstance(value.value, str):
                self._set(COLUMNS[name], value.value, name)
            elif name not in DEFAULTS and name not in WITHOUT_EFFECT and name not in ELSEWHERE:
                self.notes.append((value.where, f"{name}={value.value!r}: {REASONS.get(name, 'no counterpart')}"))
        if self.source.extra_fields:
            where, _, reason = self.source.extra_fields.partition(": ")
            self.notes.append((where, f"further settings: {reason}"))
        if self.source.is_parsed:
            self.notes.append(("", "each field of GRPOConfig can be set on the command line: --FIELD"))

    def _unread_open(self, name: str, setting: Value) -> None:
        """Open the keys of a field that is not known, where no key says so yet; else say it."""
        reason = f"{name}, {setting.where}: {setting.note}"
        if any(o.startswith(f"{name}, ") or f"; {name}, " in o for o in self.origins.values()):
            return
        for key in OPEN_KEYS.get(name, ()):
            self._open(key, reason)
        if name not in OPEN_KEYS and name not in WITHOUT_EFFECT:
            self.notes.append((setting.where, f"{name} is not known: {setting.note}"))
