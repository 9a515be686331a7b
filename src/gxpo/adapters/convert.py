"""Conversion of a TRL configuration, script or notebook to a gxpo configuration that computes the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.adapters import convert_script
from gxpo.adapters.convert_script import SourceSettings, Value
from gxpo.adapters.trl_config import DEFAULTS, with_defaults
from gxpo.adapters.trl_keys import LOSSES, WITHOUT_KEY
from gxpo.adapters.trl_settings import translate_settings
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError
from gxpo.parts.definition import show

# Fields whose default is used although nothing was stated, since it is not gxpo's.
DEFAULT = "TRL's default"
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
REWARDS = {"accuracy_reward": "math", "accuracy": "math"}  # of trl.rewards, and of open-r1
LOGGERS = ("tensorboard", "trackio", "wandb")
COLUMNS = {"system_prompt": "chat.system", "dataset_prompt_column": "tasks.options.prompt"}  # of open-r1's YAML
REASONS = {"max_prompt_length": "gone from TRL; prompts are not cut here"}
# Fields that have nothing to do with what is computed, or do by themselves what gxpo always does.
WITHOUT_EFFECT = frozenset({
    "attn_implementation", "bf16", "dataloader_num_workers", "dataloader_pin_memory", "dataset_config",
    "dataset_name", "dataset_test_split", "dataset_train_split", "ddp_timeout", "disable_tqdm", "do_eval",
    "do_train", "dtype", "eval_on_start", "fp16", "gradient_checkpointing", "gradient_checkpointing_kwargs",
    "hub_model_id", "hub_strategy", "hub_token", "log_completions", "log_level", "log_multimodal",
    "log_unique_prompts", "logging_first_step", "logging_steps", "logging_strategy", "lora_alpha", "lora_dropout",
    "lora_r", "lora_target_modules", "model_init_kwargs", "model_name_or_path", "model_revision",
    "num_completions_to_print", "num_generations_eval", "optim_args", "overwrite_output_dir",
    "per_device_eval_batch_size", "push_to_hub", "remove_unused_columns", "report_to", "reward_funcs", "run_name",
    "save_only_model", "tf32", "torch_compile", "torch_dtype", "trackio_space_id", "use_cpu", "use_liger_kernel",
    "use_peft", "vllm_device", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_mode",
    "vllm_server_host", "vllm_server_port", "vllm_tensor_parallel_size", "wandb_entity", "wandb_project",
})  # fmt: skip


@dataclass(frozen=True)
class Converted:
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


def convert_trl(path: str | Path, *, processes: int = 1) -> Converted:
    """Convert a YAML file of `trl grpo`, or a script or notebook, which is read and never run.

    processes  number that TRL is launched with: its batch sizes are per process
    ConfigError for a file that can't be read.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix in (".py", ".ipynb"):
        try:
            source = convert_script.read(path)
        except ConfigError as error:
            raise error if str(path) in str(error) else ConfigError(f"{path}: {error}") from None
    else:
        source = _read_yaml(path)
    return _Conversion(source, path, processes).converted()


def _read_yaml(path: Path) -> SourceSettings:
    """Read a YAML file of `trl grpo`: fields of GRPOConfig beside those of its model, data and adapter."""
    source = SourceSettings(settings=dict(_leaves(path)))
    for theirs, ours in (("model_name_or_path", "model"), ("dataset_name", "dataset"),
                         ("dataset_config", "dataset_config"), ("dataset_train_split", "split"),
                         ("torch_dtype", "torch_dtype"), ("dtype", "dtype")):  # fmt: skip
        if theirs in source.settings:
            source.parts[ours] = source.settings[theirs]
    if (use_peft := source.settings.get("use_peft")) is not None and use_peft.value:
        lora = {"r": 16, "lora_alpha": 32, "target_modules": None, "lora_dropout": 0.05}
        names = {"lora_r": "r", "lora_alpha": "lora_alpha", "lora_target_modules": "target_modules",
                 "lora_dropout": "lora_dropout"}  # fmt: skip
        lora |= {names[k]: v.value for k, v in source.settings.items() if k in names}
        source.parts["peft"] = Value({k: v for k, v in lora.items() if v is not None}, use_peft.where)
    reward_funcs = source.settings.get("reward_funcs", Value([], ""))
    for name in reward_funcs.value if isinstance(reward_funcs.value, list) else [reward_funcs.value]:
        source.rewards.append(("trl" if name in REWARDS else "other", Value(name, reward_funcs.where)))
    return source


def _leaves(path: Path) -> list[tuple[str, Value]]:
    """Return the fields of a YAML file, each with its line."""
    from ruamel.yaml.error import YAMLError

    try:
        document = yamltext.load(path.read_text(encoding="utf-8"), str(path))
    except YAMLError as error:
        problem, line = yamltext.problem_of(error)
        raise ConfigError(f"{path}{line}: not YAML: {problem}") from None
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path}: a configuration is a mapping of fields to values")
    lines = getattr(getattr(document, "lc", None), "data", {}) or {}
    return [
        (str(k), Value(yamltext.plain(v, f"{path}: {k}"), f"line {lines[k][0] + 1}" if k in lines else "the file"))
        for k, v in document.items()
    ]


class _Conversion:
    """Conversion of one source; its methods fill keys, origins and notes in the order in which they are printed."""

    def __init__(self, source: SourceSettings, path: Path, processes: int) -> None:
        self.source, self.path, self.processes = source, path, processes
        self.settings = {name: v.value for name, v in source.settings.items()}
        self.args = with_defaults(self.settings)
        self.keys: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.notes: list[tuple[str, str]] = []

    def converted(self) -> Converted:
        self._task()
        self._method()
        self._batches()
        self._sampling()
        self._optimiser()
        self._model()
        self._outputs()
        self._unread_settings()
        return Converted(self.keys, self.origins, (*self.source.open, *self.notes))

    # ------------------------------------------------------------ output
    def _set(self, key: str, value: Any, *fields: str) -> None:
        """Set a key, with the fields of TRL that it comes from and where they were given."""
        values = [self.source.settings[f] for f in fields if f in self.source.settings]
        places = ", ".join(dict.fromkeys(v.where for v in values))
        origin = ", ".join(f for f in fields)
        self.keys[key] = value
        self.origins[key] = f"{origin}, {places or DEFAULT}" if fields else ""

    def _part(self, key: str, name: str, value: Any = None) -> None:
        part = self.source.parts[name]
        self.keys[key] = part.value if value is None else value
        self.origins[key] = part.where

    def _note(self, field: str, note: str) -> None:
        setting = self.source.settings.get(field) or self.source.parts.get(field)
        self.notes.append((setting.where if setting is not None else "", note))

    # ------------------------------------------------------------ stages
    def _task(self) -> None:
        parts = self.source.parts
        if "model" in parts:
            self._part("model", "model")
        else:
            self._note("", "model: none is named; set model")
        files = parts.get("data_files")
        if files is not None and isinstance(files.value, str) and files.value.endswith(".jsonl"):
            self._part("task", "data_files")
        elif "dataset" in parts:
            self._part("task", "dataset", f"dataset:{parts['dataset'].value}")
            for name, option in (("dataset_config", "config"), ("split", "split")):
                if name in parts and isinstance(parts[name].value, str):
                    self._part(f"tasks.options.{option}", name)
            dataset = parts["dataset"]
            self.notes.append((
                dataset.where,
                "columns that a map() makes of the data: tasks.options.prompt and answer name those that are there, "
                "template and answer_after say the rest",
            ))  # fmt: skip
        else:
            self.keys["task"], self.origins["task"] = "TASKS.jsonl", "to be written"
            self._note("", "data: no file or data set of the hub is named; write prompts and answers to TASKS.jsonl")
        self._rewards()

    def _rewards(self) -> None:
        weights = self.settings.get("reward_weights") or [1.0] * len(self.source.rewards)
        weight_by_reward: dict[str, float] = {}
        where = ""
        for (kind, value), weight in zip(self.source.rewards, weights, strict=False):
            where = where or value.where
            if kind == "trl" and value.value in REWARDS:
                weight_by_reward[REWARDS[value.value]] = float(weight)
            elif kind == "function" and self.path.suffix == ".py":
                weight_by_reward[f"{self.path if self.source.guarded else 'my_rewards.py'}:{value.value}"] = float(
                    weight
                )
            else:
                reward_kinds = {"model": "a reward model", "trl": "trl.rewards", "function": "in a notebook"}
                what = reward_kinds.get(kind, "not a function of this file")
                self.notes.append((value.where, f"reward {value.value}: {what}; put it into a file of its own"))
        if not self.source.guarded and any(kind == "function" for kind, _ in self.source.rewards):
            note = f"importing {self.path.name} would train: move its reward functions to my_rewards.py"
            self.notes.append((where, note))
        if len(weight_by_reward) == 1 and set(weight_by_reward.values()) == {1.0}:
            self.keys["reward"], self.origins["reward"] = next(iter(weight_by_reward)), where
        elif weight_by_reward:
            self.keys["scoring.weights"], self.origins["scoring.weights"] = weight_by_reward, where

    def _method(self) -> None:
        """Find the method, and the keys in which TRL's settings differ from it."""
        # settings without a key are taken out first, or the translation would refuse the whole configuration
        settings_given, dropped = dict(self.settings), []
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
                self._set(key, value, field)
        if spec == "gdpo_multi@trl" and (weights := settings_given.get("reward_weights")):
            self._set("credit.weights", list(weights), "reward_weights")
        for name, instead in dropped:
            self._note(name, f"{name}={self.settings[name]!r}: {instead}")
        if loss == "bnpo":
            self._note("loss_type", "bnpo: TRL takes the mean of the micro-batches' means, gxpo of the whole step")
        if self.args.mask_truncated_completions:
            self._note("mask_truncated_completions", "mask_truncated_completions: cut-off completions stay in the "
                                                      "loss here")  # fmt: skip
        if self.args.sync_ref_model:
            self._note("sync_ref_model", "sync_ref_model: the reference of gxpo stays the policy of the first step")

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
        # the number of processes is no setting: a batch that is too small for a group is usually a launch on several
        if rows % group:
            self._note("num_generations", f"a generation batch of {rows} rows holds no whole groups of {group}, which "
                        "TRL 1.16 refuses: say how many processes it is launched with (--processes)")  # fmt: skip
            rows = optimiser = math.ceil(rows / group) * group
        self._set("rollout.group_size", group, "num_generations")
        fields = ["per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"]
        fields = [f for f in fields if f in self.settings] or fields[:2]
        if a.generation_batch_size:
            fields = ["generation_batch_size"]
        # a step of gxpo is a generation batch: minibatches and epochs of it are TRL's optimiser steps
        self._set("tasks.per_step", rows // group, *fields)
        self.minibatches = max(1, rows // optimiser)
        if self.minibatches > 1:
            self._set("update.minibatches", self.minibatches, "steps_per_generation", "gradient_accumulation_steps")
            if rows // group < self.minibatches or (rows // group) % self.minibatches:
                self._note("steps_per_generation", "minibatches are of whole groups here: TRL cuts through them")
        if a.num_iterations > 1:
            self._set("update.epochs", a.num_iterations, "num_iterations")
        self.per_batch = self.minibatches * a.num_iterations
        if a.max_steps > 0:
            self._set("trainer.steps", math.ceil(a.max_steps / self.per_batch), "max_steps")
        else:
            epochs = f"{a.num_train_epochs:g}"
            self._note(
                "num_train_epochs",
                f"num_train_epochs={epochs}: set trainer.steps to {epochs} x the rows of the data / {rows // group}",
            )

    def _sampling(self) -> None:
        a = self.args
        self._set("sampling.max_new_tokens", a.max_completion_length, "max_completion_length")
        for name in ("temperature", "top_p", "top_k"):
            value = getattr(a, name)
            if value is not None and value != DEFAULTS[name] and not (name == "top_k" and value < 0):
                self._set(f"sampling.{name}", value if name == "top_k" else float(value), name)
        for name in ("min_p", "repetition_penalty", "generation_kwargs"):
            if getattr(a, name) not in (DEFAULTS[name], None, {}):
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
        fields = ("vllm_importance_sampling_correction", "vllm_importance_sampling_mode",
                  "vllm_importance_sampling_clip_max")  # fmt: skip
        cap = a.vllm_importance_sampling_clip_max
        if a.vllm_importance_sampling_mode == "token_truncate" and cap and not a.vllm_importance_sampling_clip_min:
            self._set("weight.mismatch", "truncated", *fields)
            self._set("weight.mismatch.cap", float(cap), fields[-1])
        else:
            self._note(fields[1], f"vllm_importance_sampling_mode={a.vllm_importance_sampling_mode!r}: gxpo has "
                                   "weight.mismatch=truncated (token_truncate) and mismatch_mask")  # fmt: skip

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
        if ratio and total > 0:
            self._set("optim.warmup_steps", math.ceil(ratio * total), "warmup_ratio", "warmup_steps")
        elif ratio:
            self._note("warmup_ratio", f"warmup_ratio={ratio:g}: set optim.warmup_steps to this share of the "
                                        "optimiser steps")  # fmt: skip
        elif warmup:
            self._set("optim.warmup_steps", int(warmup), "warmup_steps")
        if not str(a.optim).startswith("adamw_torch"):
            self._note("optim", f"optim={a.optim!r}: gxpo steps with AdamW")
        if a.adam_epsilon != DEFAULTS["adam_epsilon"]:
            self._note("adam_epsilon", f"adam_epsilon={a.adam_epsilon:g}: 1e-8 here")

    def _model(self) -> None:
        parts, a = self.source.parts, self.args
        init = self.settings.get("model_init_kwargs")
        dtype_part = parts.get("torch_dtype") or parts.get("dtype")
        dtype = dtype_part.value if dtype_part else (init or {}).get("torch_dtype", (init or {}).get("dtype"))
        low = str(dtype) == "bfloat16" or (a.bf16 and not a.fp16)
        self._set("learner.dtype", "bfloat16" if low else "float32", "bf16")
        if a.fp16 or str(dtype) == "float16":
            self._note("fp16", "fp16: gxpo trains in float32 or bfloat16")
        elif low and str(dtype) != "bfloat16":
            self._note("bf16", "bf16: TRL keeps float32 weights and multiplies in bfloat16; learner.dtype=bfloat16 "
                                "updates float32 copies of bfloat16 weights")  # fmt: skip
        if ("gradient_checkpointing" not in self.settings and a.gradient_checkpointing) or self.settings.get(
            "gradient_checkpointing"
        ):
            self._set("learner.recompute", True, "gradient_checkpointing")
        if (peft := parts.get("peft")) is not None:
            self._lora(peft)
        if "load_in_4bit" in parts and parts["load_in_4bit"].value:
            self._note("load_in_4bit", "load_in_4bit: gxpo trains adapters on float32 or bfloat16 weights")

    def _lora(self, peft: Value) -> None:
        lora = peft.value
        self.keys["learner.lora_rank"] = int(lora.get("r", 8))
        self.keys["learner.lora_alpha"] = float(lora.get("lora_alpha", 8))
        if lora.get("target_modules"):
            self.keys["learner.lora_targets"] = lora["target_modules"]
        for key in ("learner.lora_rank", "learner.lora_alpha", "learner.lora_targets"):
            if key in self.keys:
                self.origins[key] = peft.where
        for name in ("lora_dropout", "use_rslora", "use_dora", "modules_to_save"):
            if lora.get(name):
                self.notes.append((peft.where, f"{name}={lora[name]!r}: gxpo's LoRA has none"))

    def _outputs(self) -> None:
        """Convert what the run writes: its directory, checkpoints, evaluations, loggers."""
        a = self.args
        self._set("seed", int(a.seed), "seed")
        if "output_dir" in self.settings:
            self._set("out", f"runs/{Path(a.output_dir).name}", "output_dir")  # TRL's own run stays readable
        if a.save_strategy == "no":
            self._set("trainer.checkpoint_every", 0, "save_strategy")
        elif a.save_strategy == "steps" and isinstance(a.save_steps, int) and a.save_steps >= 1:
            self._set("trainer.checkpoint_every", max(1, a.save_steps // self.per_batch), "save_steps")
        if a.save_total_limit:
            self._set("trainer.keep_checkpoints", int(a.save_total_limit), "save_total_limit")
        if a.eval_strategy == "steps" and a.eval_steps and a.eval_steps >= 1:
            self._set("eval.every", max(1, int(a.eval_steps) // self.per_batch), "eval_steps")
        loggers = a.report_to if isinstance(a.report_to, list) else [a.report_to]
        if supported := [name for name in loggers if name in LOGGERS]:
            self._set("trainer.callbacks", supported, "report_to")
        for name in loggers:
            if name not in ("none", None, "all", *LOGGERS):
                self._note("report_to", f"report_to={name!r}: gxpo has {', '.join(LOGGERS)}, and callbacks")

    def _unread_settings(self) -> None:
        """Note the settings that have no counterpart, unless they change nothing that is computed."""
        for name, value in self.source.settings.items():
            if name in COLUMNS and isinstance(value.value, str):
                self._set(COLUMNS[name], value.value, name)
            elif name not in DEFAULTS and name not in WITHOUT_EFFECT:
                self.notes.append((value.where, f"{name}={value.value!r}: {REASONS.get(name, 'no counterpart')}"))
