"""Conversion of a verl launch, by its Hydra overrides, to a gxpo configuration that computes the same."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml.error import YAMLError

from gxpo.adapters.convert import Converted
from gxpo.adapters.verl_asks import AGGREGATES, SUCCESS_AT, SUMMED
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError
from gxpo.methods import METHODS
from gxpo.methods.compat import COMPAT
from gxpo.parts.definition import show

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
DEFAULT = "verl's default"
# verl 0.9.1's defaults of what is read here
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae", "algorithm.norm_adv_by_std_in_grpo": True, "algorithm.use_kl_in_reward": False,
    "algorithm.kl_ctrl.kl_coef": 0.001, "data.train_batch_size": 1024, "data.max_response_length": 512,
    f"{A}.ppo_mini_batch_size": 256, f"{A}.ppo_epochs": 1, f"{A}.clip_ratio": 0.2, f"{A}.loss_agg_mode": "token-mean",
    f"{A}.use_kl_loss": False, f"{A}.kl_loss_coef": 0.001, f"{A}.kl_loss_type": "low_var_kl", f"{A}.entropy_coeff": 0,
    f"{A}.clip_ratio_c": 3.0, f"{A}.policy_loss.loss_mode": "vanilla", f"{A}.optim.lr": 1e-6,
    f"{A}.optim.weight_decay": 0.01, f"{A}.optim.lr_warmup_steps": -1, f"{A}.optim.lr_warmup_steps_ratio": 0.0,
    f"{A}.optim.lr_scheduler_type": "constant", f"{A}.optim.clip_grad": 1.0, f"{R}.n": 1, f"{R}.temperature": 1.0,
    f"{R}.top_k": -1, f"{R}.top_p": 1, "trainer.total_epochs": 30, "trainer.total_training_steps": None,
    "trainer.save_freq": -1, "trainer.test_freq": -1,
}  # fmt: skip
ESTIMATORS = {
    "grpo": "grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_pp", "opo": "opo", "grpo_passk": "passk",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline", "gpg": "gpg",
}  # fmt: skip
LOSSES = {"gspo": "gspo", "geo_mean": "gmpo", "cispo": "cispo", "sapo": "sapo_gate", "gpg": "gpg",
          "dppo_tv": "dppo_divergence", "dppo_kl": "dppo_divergence"}  # fmt: skip
KLS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
IGNORED = re.compile(
    r"(trainer\.(logger|project_name|experiment_name|n_gpus_per_node|nnodes|val_before_train|critic_warmup|balance_batch"
    r"|default_local_dir|resume_mode|use_v1|device)|.*micro_batch_size.*|.*fsdp_config.*|.*ref\..*|.*gpu_memory.*"
    r"|.*tensor_model_parallel_size|.*use_dynamic_bsz|.*max_token_len.*|.*enable_gradient_checkpointing"
    r"|.*use_remove_padding|.*enforce_eager|.*free_cache_engine|.*ulysses.*|critic\..*|data\.(shuffle|filter_.*|"
    r"truncation|return_.*|val_.*|max_prompt_length|prompt_key)|.*val_kwargs.*|.*load_format|ray_kwargs.*"
    r"|.*rollout\.name|.*rollout\.mode|hydra.*|.*layered_summon|.*chunked_prefill|.*max_num_.*|.*strategy|.*warmup_style"
    r"|algorithm\.(gamma|lam|kl_penalty))$"
)


def convert_verl(source: Sequence[str]) -> Converted:
    """Convert Hydra overrides ("algorithm.adv_estimator=grpo ..."), or a launch script with them (.sh).

    A script is read and never run: variables that it sets to plain values are filled in. ConfigError if there is no
    override in the source.
    """
    if len(source) == 1 and source[0].endswith((".sh", ".bash")):
        path = Path(source[0])
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
        overrides, notes = _script_overrides(path.read_text(encoding="utf-8"))
    else:
        overrides, notes = _overrides(shlex.split(" ".join(source)), ""), []
    if not overrides:
        raise ConfigError("there is no KEY=VALUE of verl in it, such as algorithm.adv_estimator=grpo")
    return _Conversion(overrides, notes).converted()


def _overrides(words: Sequence[str], where: str) -> dict[str, tuple[Any, str]]:
    """Return the overrides among words: key -> (value, place). Values are YAML, as for Hydra."""
    overrides = {}
    for word in words:
        key, sign, text = word.lstrip("+").partition("=")
        if sign and re.fullmatch(r"[a-z_]+(\.[A-Za-z_0-9]+)+", key):
            try:
                overrides[key] = yamltext.plain(yamltext.load(text, key), key) if text else "", where
            except YAMLError as error:
                raise ConfigError(f"{where}: {key}: not YAML: {yamltext.problem_of(error)[0]}") from None
    return overrides


def _script_overrides(text: str) -> tuple[dict[str, tuple[Any, str]], list[tuple[str, str]]]:
    """Return a script's overrides with their lines, and notes on those whose values need the script to run."""
    variables: dict[str, str] = {}
    overrides: dict[str, tuple[Any, str]] = {}
    notes = []
    for number, raw_line in enumerate(text.splitlines(), 1):
        line = raw_line.strip().rstrip("\\").strip()
        where = f"line {number}"
        if line.startswith("#"):
            continue
        # a variable that is set by a command stays unknown, and so do overrides that use it
        if assignment := re.fullmatch(r"(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\S*)", line):
            value = _filled(assignment[2].strip("\"'"), variables)
            if value is not None:
                variables[assignment[1]] = value
            continue
        try:
            words = shlex.split(line)
        except ValueError:
            continue
        for word in words:
            if "=" not in word or not re.match(r"\+*[a-z_]+\.", word):
                continue
            value = _filled(word, variables)
            if value is None:
                notes.append((where, f"{word.partition('=')[0]}: its value is known when the script runs"))
            else:
                overrides |= _overrides([value], where)
    return overrides, notes


def _filled(text: str, variables: Mapping[str, str]) -> str | None:
    """Fill shell variables into a text, with `${NAME:-DEFAULT}`; None if one of them is unknown."""

    def put(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if name not in variables and default is None:
            raise KeyError(name)
        return variables.get(name, default or "")

    try:
        filled = re.sub(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))", put, text)
    except KeyError:
        return None
    return None if "$" in filled or "`" in filled else filled


class _Conversion:
    """Conversion of one source; its methods fill keys, origins and notes in the order in which they are printed."""

    def __init__(self, overrides: dict[str, tuple[Any, str]], notes: list[tuple[str, str]]) -> None:
        self.overrides, self.notes, self.keys_read = overrides, list(notes), set[str]()
        self.keys: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def get(self, key: str) -> Any:
        """Return a setting of verl's, else its default; keys that nobody gets are noted at the end."""
        self.keys_read.add(key)
        return self.overrides[key][0] if key in self.overrides else DEFAULTS.get(key)

    def put(self, key: str, value: Any, *theirs: str) -> None:
        """Set a key of gxpo, with verl's keys `theirs` that it comes from."""
        self.keys[key] = value
        places = [self.overrides[k][1] for k in theirs if k in self.overrides and self.overrides[k][1]]
        given_keys = [k for k in theirs if k in self.overrides]
        self.origins[key] = ", ".join(dict.fromkeys([*(given_keys or theirs), *(places if given_keys else [DEFAULT])]))

    def note(self, key: str, note: str) -> None:
        self.notes.append((self.overrides.get(key, ("", ""))[1], note))

    def converted(self) -> Converted:
        if (model := self.get("actor_rollout_ref.model.path")) is not None:
            self.put("model", str(model), "actor_rollout_ref.model.path")
        files = self.get("data.train_files")
        note = f"data: {files or 'none is named'}: set task, e.g. to a .jsonl of prompts and answers"
        self.note("data.train_files", note)
        for key in ("custom_reward_function.path", "reward.custom_reward_function.path"):
            if self.get(key):
                self.note(key, f"{key}={self.get(key)}: compute_score becomes def reward(completion, answer) -> float")
        self._method()
        self._batches()
        self._run_settings()
        for key, (value, where) in self.overrides.items():
            if key not in self.keys_read and not IGNORED.match(key):
                self.notes.append((where, f"{key}={value}: no counterpart"))
        return Converted(self.keys, self.origins, tuple(self.notes), "verl 0.9.1")

    # ------------------------------------------------------------ the method
    def _method(self) -> None:
        """Convert estimator, policy loss, aggregation, clip and penalties."""
        estimator, mode = str(self.get("algorithm.adv_estimator")), str(self.get(f"{A}.policy_loss.loss_mode"))
        credit = self._method_of(estimator, ESTIMATORS, "algorithm.adv_estimator")
        loss = None if mode == "vanilla" else self._method_of(mode, LOSSES, f"{A}.policy_loss.loss_mode")
        self.put("method", credit or "grpo@verl", "algorithm.adv_estimator")
        if not self.get("algorithm.norm_adv_by_std_in_grpo"):
            self.put("credit.scale", "none", "algorithm.norm_adv_by_std_in_grpo")
        if loss is not None:
            name, _, system = loss.partition("@")
            self.put("objective", name, f"{A}.policy_loss.loss_mode")
            # `objective: NAME` takes the published loss; verl's constants of it are keys of their own
            for key, value in COMPAT["verl"].get(name, {}).items() if system else ():
                if key.startswith("objective."):
                    plain = value if isinstance(value, (int, float, str, bool)) else show(value)
                    self.put(key, plain, f"{A}.policy_loss.loss_mode")
        agg = str(self.get(f"{A}.loss_agg_mode"))
        names = {v: k for k, v in AGGREGATES.items()} | {SUMMED: "sequence_sum"}
        if agg in names:
            self.put("objective.aggregate", names[agg], f"{A}.loss_agg_mode")
            if agg == SUMMED:
                self.put("objective.horizon", 1.0, f"{A}.loss_agg_mode")
            elif agg == AGGREGATES["sequence_sum"] and (factor := self.get(f"{A}.loss_scale_factor")):
                self.put("objective.horizon", float(factor), f"{A}.loss_scale_factor")
        else:
            self.note(f"{A}.loss_agg_mode", f"loss_agg_mode={agg}: gxpo has token_mean, sequence_mean, sequence_sum")
        self._clip(loss)
        self._penalties()
        if (threshold := self.get(f"algorithm.{SUCCESS_AT}")) is not None:
            self.note(f"algorithm.{SUCCESS_AT}", f"{SUCCESS_AT}={threshold}: let the reward return {{'correct': ...}}")

    def _method_of(self, name: str, methods: Mapping[str, str], key: str) -> str | None:
        """Return gxpo's method for a name of verl's, or for gxpo/NAME; None, with a note, if there is none."""
        if name.startswith("gxpo/"):
            return name.removeprefix("gxpo/")
        ours = methods.get(name)
        if ours is None or ours not in METHODS:
            self.note(key, f"{key}={name}: gxpo has {', '.join(methods)} of these")
            return None
        return f"{ours}@verl" if ours in COMPAT["verl"] else ours

    def _clip(self, loss: str | None) -> None:
        clip_ratio = self.get(f"{A}.clip_ratio")
        for ours, theirs in (("clip_low", "clip_ratio_low"), ("clip_high", "clip_ratio_high")):
            value = self.get(f"{A}.{theirs}")
            value = clip_ratio if value is None else value
            if loss is None and (f"{A}.{theirs}" in self.overrides or f"{A}.clip_ratio" in self.overrides):
                self.put(f"objective.{ours}", float(value), f"{A}.{theirs}", f"{A}.clip_ratio")
        c = self.get(f"{A}.clip_ratio_c")
        if loss is None and f"{A}.clip_ratio_c" in self.overrides:
            self.put("objective.ratio_max", float(c), f"{A}.clip_ratio_c")

    def _penalties(self) -> None:
        if self.get(f"{A}.use_kl_loss"):
            kind = str(self.get(f"{A}.kl_loss_type")).removesuffix("+")
            self.put("objective.kl.coef", float(self.get(f"{A}.kl_loss_coef")), f"{A}.kl_loss_coef")
            if kind in KLS and KLS[kind] != "k3":
                self.put("objective.kl.estimator", KLS[kind], f"{A}.kl_loss_type")
        if self.get("algorithm.use_kl_in_reward"):
            self.put("objective.kl.coef", float(self.get("algorithm.kl_ctrl.kl_coef")), "algorithm.kl_ctrl.kl_coef")
            self.put("objective.kl.place", "reward", "algorithm.use_kl_in_reward")
        if entropy := self.get(f"{A}.entropy_coeff"):
            self.put("objective.entropy.coef", float(entropy), f"{A}.entropy_coeff")

    # ------------------------------------------------------------ the run
    def _batches(self) -> None:
        prompts, mini = int(self.get("data.train_batch_size")), int(self.get(f"{A}.ppo_mini_batch_size"))
        self.put("tasks.per_step", prompts, "data.train_batch_size")
        self.put("rollout.group_size", int(self.get(f"{R}.n")), f"{R}.n")
        if (steps := math.ceil(prompts / mini)) > 1:  # both count prompts
            self.put("update.minibatches", steps, f"{A}.ppo_mini_batch_size")
        if (epochs := int(self.get(f"{A}.ppo_epochs"))) > 1:
            self.put("update.epochs", epochs, f"{A}.ppo_epochs")
        if total := self.get("trainer.total_training_steps"):
            self.put("trainer.steps", int(total), "trainer.total_training_steps")
        else:
            epochs = self.get("trainer.total_epochs")
            note = f"total_epochs={epochs}: set trainer.steps to {epochs} x the rows of the data / {prompts}"
            self.note("trainer.total_epochs", note)

    def _run_settings(self) -> None:
        """Convert sampling, optimiser, adapters, checkpoints and evaluations."""
        self.put("sampling.max_new_tokens", int(self.get("data.max_response_length")), "data.max_response_length")
        for name, default in (("temperature", 1.0), ("top_p", 1), ("top_k", -1)):
            if (value := self.get(f"{R}.{name}")) != default:
                self.put(f"sampling.{name}", int(value) if name == "top_k" else float(value), f"{R}.{name}")
        # verl's optimiser defaults differ from gxpo's, so they are printed even where nothing was stated
        self.put("optim.lr", float(self.get(f"{A}.optim.lr")), f"{A}.optim.lr")
        self.put("optim.weight_decay", float(self.get(f"{A}.optim.weight_decay")), f"{A}.optim.weight_decay")
        clip = self.get(f"{A}.optim.clip_grad")
        clip = self.get(f"{A}.grad_clip") if f"{A}.grad_clip" in self.overrides else clip
        if clip != 1.0:
            self.put("optim.max_grad_norm", float(clip), f"{A}.optim.clip_grad", f"{A}.grad_clip")
        shape = str(self.get(f"{A}.optim.lr_scheduler_type"))
        if shape != "constant":
            self.put("optim.schedule", shape, f"{A}.optim.lr_scheduler_type")
        warmup = int(self.get(f"{A}.optim.lr_warmup_steps"))
        if warmup > 0:
            self.put("optim.warmup_steps", warmup, f"{A}.optim.lr_warmup_steps")
        elif ratio := self.get(f"{A}.optim.lr_warmup_steps_ratio"):
            self.note(f"{A}.optim.lr_warmup_steps_ratio", f"lr_warmup_steps_ratio={ratio}: set optim.warmup_steps")
        self.put("learner.dtype", "bfloat16", "actor_rollout_ref.rollout.dtype")
        if rank := self.get("actor_rollout_ref.model.lora_rank"):
            self.put("learner.lora_rank", int(rank), "actor_rollout_ref.model.lora_rank")
            alpha = self.get("actor_rollout_ref.model.lora_alpha")
            self.put("learner.lora_alpha", float(16 if alpha is None else alpha), "actor_rollout_ref.model.lora_alpha")
        if (every := self.get("trainer.save_freq")) and int(every) > 0:
            self.put("trainer.checkpoint_every", int(every), "trainer.save_freq")
        if (every := self.get("trainer.test_freq")) and int(every) > 0:
            self.put("eval.every", int(every), "trainer.test_freq")
