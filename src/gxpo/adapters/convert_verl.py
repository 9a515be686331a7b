"""Conversion of a verl launch to a gxpo configuration that computes the same; what is not known stays open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gxpo.adapters.convert import ConvertedKeys
from gxpo.adapters.shell.values import Unknown
from gxpo.adapters.verl_asks import AGGREGATES, BOUNDS, SUCCESS_AT, SUMMED
from gxpo.adapters.verl_keys import CORRECTION, ESTIMATORS, IGNORED, KLS, LOSSES, MANAGERS, OWN_LOSS, A, M, R
from gxpo.adapters.verl_source import OpenSetting, Source, read_source
from gxpo.base import yamltext
from gxpo.base.errors import ConfigError
from gxpo.environments.tasks.epochs import KINDS
from gxpo.methods import METHODS
from gxpo.methods.compat import COMPAT
from gxpo.methods.compose import method as compose
from gxpo.parts.definition import SettingValue, show
from gxpo.parts.options import nest_keys
from gxpo.parts.settings import RUN_KEYS, RunSettings

DEFAULT = "verl's default"


def convert_verl(source: Sequence[str]) -> ConvertedKeys:
    """Convert overrides of Hydra, a YAML file of it, or a launch script, which is read and never run.

    source  ["algorithm.adv_estimator=grpo ..."], or a file (.sh, .yaml), with NAME=VALUE of its environment before it
            and its arguments behind it

    A setting whose value is known only when the script runs leaves its key open. ConfigError, on one line, where
    nothing of verl is in the source or it can't be read.
    """
    try:
        read = read_source(source)
    except RecursionError:
        raise ConfigError(f"{source[0][:80]}: it is nested too deeply to be read") from None
    if not read.settings and not read.unread:
        raise ConfigError("there is no KEY=VALUE of verl in it, such as algorithm.adv_estimator=grpo")
    return _Conversion(read).converted()


class _Conversion:
    """Conversion of one source; its methods fill keys, origins and notes in the order in which they are printed."""

    def __init__(self, source: Source) -> None:
        self.source, self.overrides, self.notes = source, source.settings, list(source.notes)
        self.get, self.find, self.keys_read = source.get, source.find, source.keys_read
        self.is_set, self.is_unknown = source.is_set, source.is_unknown
        self.keys: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def put(self, key: str, value: Callable[[], Any], *theirs: str) -> Any:
        """Set a key of gxpo, with verl's keys `theirs` that it comes from; None leaves it out, unknown leaves it open.

        Returns the value, None if it is open or left out.
        """
        given_keys = [k for k in theirs if k in self.overrides]
        try:
            result = value()
        except OpenSetting as error:
            # what the source does say of it helps whoever fills the value in
            statements = [self._statement(k) for k in given_keys if k not in str(error)]
            self.keys[key], self.origins[key] = yamltext.OPEN, "; ".join([str(error), *statements])
            return None
        except (TypeError, ValueError, ArithmeticError):
            texts = ", ".join(f"{k}={self.overrides[k][0]}" for k in given_keys)
            self.leave_open(key, f"{texts} is no value of it" if texts else f"{theirs[0]} is not set", *given_keys)
            return None
        if result is None:
            return None
        self.keys[key] = result
        places = [self.overrides[k][1] for k in given_keys if self.overrides[k][1]]
        self.origins[key] = ", ".join(dict.fromkeys([*(given_keys or theirs), *(places if given_keys else [DEFAULT])]))
        return result

    def leave_open(self, key: str, reason: str, *theirs: str) -> None:
        place = next((self.overrides[k][1] for k in theirs if k in self.overrides), "")
        self.keys[key], self.origins[key] = yamltext.OPEN, f"{place and f'{place}: '}{reason}"

    def _statement(self, key: str) -> str:
        value, place = self.overrides[key]
        return f"{place and f'{place}: '}{key}={_text_of(value)}"

    def note(self, key: str, note: str) -> None:
        self.notes.append((self.overrides.get(key, ("", ""))[1], note))

    def converted(self) -> ConvertedKeys:
        self._model_and_task()
        self._method()
        self._batches()
        self._rollouts()
        self._run_settings()
        self._refuse_invalid()
        for key, (value, where) in self.overrides.items():
            if key not in self.keys_read and not IGNORED.match(key) and value is not None:
                text = f"{value.text} ({value.why})" if isinstance(value, Unknown) else value
                self.notes.append((where, f"{key}={text}: no counterpart"))
        return ConvertedKeys(self.keys, self.origins, tuple(dict.fromkeys(self.notes)), "verl 0.9.1")

    # ------------------------------------------------------------ model and task
    def _model_and_task(self) -> None:
        path = f"{M}.path"
        if self.is_set(path):
            self.put("model", lambda: str(self.source.get_path(path)), path)
        else:
            self.leave_open("model", (self.source.unread and f"{path}: {self.source.unread}") or f"{path} is not set")
        self.put("task", self._task, "data.train_files")
        self._reward()

    def _task(self) -> str:
        """Return the training data, if they are one file that gxpo reads."""
        if not self.is_set("data.train_files"):
            raise OpenSetting("data.train_files is not set: a task, or a .jsonl or .parquet of prompts and answers")
        files = self.source.get_path("data.train_files")
        files = files if isinstance(files, list) else [files]
        if len(files) == 1 and str(files[0]).endswith(KINDS):
            return str(files[0])
        where = self.overrides["data.train_files"][1]
        raise OpenSetting(
            f"{where and f'{where}: '}data.train_files={', '.join(map(str, files))}: name one file, or a task"
        )

    def _reward(self) -> None:
        """Name a reward function or a reward model; without one verl scores by the data's `data_source`."""
        names = ("reward.custom_reward_function.path", "custom_reward_function.path")
        models = ("reward.reward_model.enable", "reward_model.enable")
        own_manager = self._names_own_manager()
        if (path := self.find(*names)) or any(self.is_unknown(k) for k in names):
            text = f"{names[0]}={path or self.overrides[next(k for k in names if k in self.overrides)][0].text}"
            function = self.find(*(k.replace(".path", ".name") for k in names)) or "compute_score"
            self.leave_open("reward", f"{text}: its {function} becomes def reward(completion, answer) -> float", *names)
        elif self.find(*models) or any(map(self.is_unknown, models)):
            model = self.find("reward.reward_model.model_path", "reward_model.model.path")
            condition = "" if self.find(*models) else ", if it is enabled"
            self.leave_open("reward", f"a reward model ({model}){condition}: a reward of gxpo is a function", *models)
        elif not own_manager:
            self.notes.append(("", "reward: verl scores by the data's data_source, gxpo by its own `reward`"))
        self.keys_read |= {"reward.custom_reward_function.name", "custom_reward_function.name"}

    def _names_own_manager(self) -> bool:
        """Note a reward manager that isn't verl's: it may score by anything."""
        key = next((k for k in MANAGERS if k in self.overrides), "")
        self.keys_read |= set(MANAGERS)
        if not key or self.find(key) in MANAGERS[key]:
            return False
        text = _text_of(self.overrides[key][0])
        self.note(key, f"{key}={text}: no manager of verl, so how it scores is not known: write it as a `reward`")
        return True

    # ------------------------------------------------------------ the method
    def _method(self) -> None:
        """Convert estimator, policy loss, aggregation, clip and penalties."""
        self.put("method", self._estimator, "algorithm.adv_estimator")
        scale = "algorithm.norm_adv_by_std_in_grpo"
        self.put("credit.scale", lambda: None if self.get(scale) else "none", scale)
        mode = f"{A}.policy_loss.loss_mode"
        loss = self.put("objective", self._loss, mode)
        if loss is not None:
            # `objective: NAME` takes the published loss; verl's constants of it are keys of their own
            for key, value in COMPAT["verl"].get(loss, {}).items():
                if key.startswith("objective."):
                    plain = value if isinstance(value, (int, float, str, bool)) else show(value)
                    self.put(key, lambda v=plain: v, mode)
        self.put("objective.aggregate", self._aggregate, f"{A}.loss_agg_mode")
        if self.keys.get("objective.aggregate") == "sequence_sum":
            self.put("objective.horizon", self._horizon, f"{A}.loss_agg_mode", f"{A}.loss_scale_factor")
        self._bounds()
        self._penalties()
        if (threshold := self.find(f"algorithm.{SUCCESS_AT}")) is not None:
            self.note(f"algorithm.{SUCCESS_AT}", f"{SUCCESS_AT}={threshold}: let the reward return {{'correct': ...}}")

    def _estimator(self) -> str:
        """Return the method of verl's estimator; OpenSetting where gxpo has none that was compared with it."""
        self.keys_read |= {"algorithm.adv_estimator", "distillation.enabled"}
        if OWN_LOSS.search(self.source.program):
            raise OpenSetting(f"{self.source.program} has a loss or an estimator of its own")
        if self.is_unknown("distillation.enabled") or self.find("distillation.enabled"):
            raise OpenSetting("distillation.enabled: the loss is of distillation from a teacher")
        return self._method_of("algorithm.adv_estimator", ESTIMATORS)

    def _method_of(self, key: str, methods: Mapping[str, str]) -> str:
        """Return gxpo's method for a name of verl's, or for gxpo/NAME."""
        name = str(self.get(key))
        if name.startswith("gxpo/"):
            return name.removeprefix("gxpo/")
        ours = methods.get(name, "")
        if ours not in METHODS:
            where = self.overrides.get(key, ("", ""))[1]
            hint = (
                f"gxpo has a {name} that was not compared with it"
                if name in METHODS
                else f"gxpo has {', '.join(methods)}"
            )
            raise OpenSetting(f"{where and f'{where}: '}{key}={name}: {hint}")
        return f"{ours}@verl" if ours in COMPAT["verl"] else ours

    def _loss(self) -> str | None:
        mode = str(self.get(f"{A}.policy_loss.loss_mode"))
        if mode == "bypass_mode":  # what the correction does by itself, with the loss that it names
            return None
        return None if mode == "vanilla" else self._method_of(f"{A}.policy_loss.loss_mode", LOSSES).partition("@")[0]

    def _aggregate(self) -> str:
        agg = str(self.get(f"{A}.loss_agg_mode"))
        names = {v: k for k, v in AGGREGATES.items()} | {SUMMED: "sequence_sum"}
        if agg not in names:
            raise OpenSetting(f"{A}.loss_agg_mode={agg}: gxpo has token_mean, sequence_mean, sequence_sum")
        return names[agg]

    def _horizon(self) -> float | None:
        if self.get(f"{A}.loss_agg_mode") == SUMMED:
            return 1.0
        factor = self.get(f"{A}.loss_scale_factor")
        return float(factor) if factor else None

    def _bounds(self) -> None:
        """Convert the bounds of the clip to options of the surrogate that the method and the loss have."""
        if self.is_set(f"{A}.clip_ratio") and not self.is_set(f"{A}.clip_ratio_low", f"{A}.clip_ratio_high"):
            reason = "without effect: clip_ratio_low and _high are 0.2 by default"
            self.note(f"{A}.clip_ratio", f"actor.clip_ratio: {reason}")
        self.keys_read.add(f"{A}.clip_ratio")
        method, objective = self.keys.get("method"), self.keys.get("objective")
        if objective == yamltext.OPEN:
            for name in BOUNDS:
                if self.is_set(f"{A}.{name}"):
                    self.keys_read.add(f"{A}.{name}")
                    bound = f"{A}.{name}={self.find(f'{A}.{name}')}"
                    self.note(f"{A}.{name}", f"{bound}: a bound of the loss that is open")
            return
        setting_by_key = {
            k: SettingValue(v, "verl") for k, v in self.keys.items() if k.startswith("objective") and v != yamltext.OPEN
        }
        try:
            term = compose("grpo@verl" if method == yamltext.OPEN else str(method), setting_by_key).terms["policy"]
        except ConfigError:
            return
        surrogate = getattr(term, "surrogate", None)
        for name, (_, options) in BOUNDS.items():
            option, in_unit = options.get(show(surrogate), ("", float))
            if not option:
                continue
            composed = getattr(surrogate, "options", {}).get(option, getattr(surrogate, option, None))
            key, theirs = f"objective.{option}", f"{A}.{name}"
            self.put(key, lambda u=in_unit, t=theirs: u(float(self.get(t))), theirs)
            # the method's own value is left out where nobody stated it
            if not self.is_set(theirs) and self.keys.get(key) == composed and key not in setting_by_key:
                del self.keys[key], self.origins[key]

    def _penalties(self) -> None:
        """Convert KL penalties, in the loss or in the reward, and the entropy bonus."""
        use, coef = f"{A}.use_kl_loss", f"{A}.kl_loss_coef"
        kl = self.put("objective.kl.coef", lambda: float(self.get(coef)) if self.get(use) else None, coef, use)
        if "objective.kl.coef" in self.keys:
            self.put("objective.kl.estimator", self._kl_estimator, f"{A}.kl_loss_type")
        use, coef = "algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"
        if kl is None and "objective.kl.coef" not in self.keys:
            self.put("objective.kl.coef", lambda: float(self.get(coef)) if self.get(use) else None, coef, use)
            if "objective.kl.coef" in self.keys:
                self.put("objective.kl.place", lambda: "reward" if self.get(use) else None, use)
        elif self.find(use) or self.is_unknown(use):
            self.note(use, f"{use} beside actor.use_kl_loss: gxpo has one place, objective.kl.place")
        if self.find("algorithm.kl_ctrl.type") not in ("fixed", None):
            self.note("algorithm.kl_ctrl.type", "algorithm.kl_ctrl.type=adaptive: see objective.kl.control")
        self.keys_read |= {coef, f"{A}.kl_loss_coef", f"{A}.kl_loss_type", "algorithm.kl_penalty"}
        entropy = f"{A}.entropy_coeff"
        self.put("objective.entropy.coef", lambda: float(self.get(entropy)) or None, entropy)

    def _kl_estimator(self) -> str | None:
        kind = str(self.get(f"{A}.kl_loss_type")).removesuffix("+")
        if kind not in KLS:
            raise OpenSetting(f"{A}.kl_loss_type={kind}: gxpo has {', '.join(KLS)}")
        return None if KLS[kind] == "k3" else KLS[kind]

    # ------------------------------------------------------------ batches and rollouts
    def _batches(self) -> None:
        """Convert batch sizes: both count prompts, as gxpo counts groups."""
        batch, mini = "data.train_batch_size", f"{A}.ppo_mini_batch_size"
        prompts = self.put("tasks.per_step", self._per_step, batch, "data.gen_batch_size", mini)
        self.put("rollout.group_size", lambda: int(self.get(f"{R}.n")), f"{R}.n")
        if prompts is None:
            self.put("update.minibatches", self._unknown_minibatches, batch, mini)
        else:
            self.put("update.minibatches", lambda: _above_one(math.ceil(prompts / int(self.get(mini)))), mini)
        self.put("update.epochs", lambda: _above_one(int(self.get(f"{A}.ppo_epochs"))), f"{A}.ppo_epochs")
        self.put("trainer.steps", self._steps, "trainer.total_training_steps", "trainer.total_epochs")

    def _per_step(self) -> int:
        batch, generated = self.get("data.train_batch_size"), self.get("data.gen_batch_size")
        if self._is_async():  # a step takes so many samples from the queue
            return int(self.get(f"{A}.ppo_mini_batch_size")) * int(self.get("async_training.require_batches"))
        # the data are drawn by gen_batch_size, and all of it is trained on unless groups are filtered
        filters = self.get("algorithm.filter_groups.enable")
        return int(generated) if generated and not filters else int(batch)

    def _is_async(self) -> bool:
        return "async_training.require_batches" in self.source.defaults

    def _unknown_minibatches(self) -> int | None:
        if self._is_async():
            return _above_one(int(self.get("async_training.require_batches")))
        mini = self.get(f"{A}.ppo_mini_batch_size")
        raise OpenSetting(f"tasks.per_step / {mini}, as {A}.ppo_mini_batch_size={mini}")

    def _steps(self) -> int:
        if total := self.get("trainer.total_training_steps"):
            return int(total)
        prompts = self.keys.get("tasks.per_step")
        epochs = self.get("trainer.total_epochs")
        total = self.find("rollout.total_rollout_steps") if self._is_async() else None
        most = f", at most {total} / {prompts}, as rollout.total_rollout_steps={total}" if total else ""
        raise OpenSetting(f"trainer.total_epochs={epochs}: {epochs} x the rows of the data / {prompts}{most}")

    def _rollouts(self) -> None:
        """Convert dynamic sampling, the penalty on overlong answers, and the correction of the sampler's log-probs."""
        groups = "algorithm.filter_groups"
        enable, batches = f"{groups}.enable", f"{groups}.max_num_gen_batches"
        if self.put("rollout", lambda: "dynamic_sampling" if self.get(enable) else None, enable):
            self.put("rollout.max_batches", lambda: int(self.get(batches)), batches)
            if self.find(f"{groups}.metric") not in (None, "acc"):
                metric = f"{groups}.metric={self.find(f'{groups}.metric')}"
                self.note(f"{groups}.metric", f"{metric}: gxpo keeps groups whose verdicts (correct or not) differ")
            if self.find("data.gen_batch_size"):
                self.note("data.gen_batch_size", f"data.gen_batch_size={self.find('data.gen_batch_size')}: gxpo draws "
                                                 "tasks.per_step at a time until it has as many")  # fmt: skip
        self.keys_read |= {f"{groups}.{name}" for name in ("metric", "max_num_gen_batches")} | {"data.gen_batch_size"}
        self._overlong()
        self._correction()

    def _overlong(self) -> None:
        places = ("reward.reward_kwargs.overlong_buffer_cfg", "reward_model.reward_kwargs.overlong_buffer_cfg",
                  "reward_model.overlong_buffer")  # fmt: skip
        limits = ("reward.reward_kwargs.max_resp_len", "reward_model.reward_kwargs.max_resp_len")
        names = {
            name: tuple(f"{place}.{name}" for place in places) for name in ("enable", "len", "penalty_factor", "log")
        }
        limit = lambda: int(self.get(*limits) if self.is_set(*limits) else self.get("data.max_response_length"))  # noqa: E731
        part = "reward.add.overlong"
        if not self.is_set(*names["enable"]):
            return
        self.put(part, lambda: "overlong" if self.get(*names["enable"]) else None, *names["enable"])
        if part in self.keys:
            self.put(f"{part}.max_length", limit, *limits, "data.max_response_length")
            self.put(f"{part}.buffer", lambda: int(self.get(*names["len"])) / limit(), *names["len"])
            self.put(f"{part}.factor", lambda: float(self.get(*names["penalty_factor"])), *names["penalty_factor"])
        self.keys_read |= {key for keys in names.values() for key in keys} | set(limits)

    def _correction(self) -> None:
        """Convert truncated importance sampling of tokens, and the ratio over the sampler's policy."""
        level, bypass = f"{CORRECTION}.rollout_is", f"{CORRECTION}.bypass_mode"
        cap, normed = f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.rollout_is_batch_normalize"
        self.put("objective.ratio_over", self._ratio_over, bypass)
        by_sampler = self.keys.get("objective.ratio_over") == "behaviour"
        if self.find(f"{CORRECTION}.loss_type") not in ("ppo_clip", None) and by_sampler:
            self.note(f"{CORRECTION}.loss_type", f"{CORRECTION}.loss_type: gxpo clips the ratio, as ppo_clip")
        kind = self.find(level)
        if by_sampler and kind:
            self.note(level, f"{level}={kind}: without effect, for the ratio is over the sampler's policy")
        elif kind == "token" and not (self.is_unknown(normed) or self.find(normed)):
            self.put("weight.mismatch", lambda: "truncated", level)
            self.put("weight.mismatch.cap", lambda: float(self.get(cap)), cap)
        elif kind or self.is_unknown(level):
            self.put("weight.mismatch", self._no_weight, level)
        rejection = f"{CORRECTION}.rollout_rs"
        if self.find(rejection):
            self.note(rejection, f"{rejection}={self.find(rejection)}: see weight.mismatch=mismatch_mask")
        names = ("rollout_is_threshold", "rollout_rs", "loss_type", "rollout_rs_threshold",
                 "rollout_is_batch_normalize")  # fmt: skip
        self.keys_read |= {f"{CORRECTION}.{name}" for name in names} | {f"{A}.use_rollout_log_probs"}

    def _ratio_over(self) -> str | None:
        return "behaviour" if self.get(f"{CORRECTION}.bypass_mode") else None

    def _no_weight(self) -> None:
        kind = self.get(f"{CORRECTION}.rollout_is")
        raise OpenSetting(f"{CORRECTION}.rollout_is={kind}: gxpo has truncated, of tokens, and mismatch_mask")

    # ------------------------------------------------------------ the run
    def _run_settings(self) -> None:
        """Convert sampling, optimiser, adapters, checkpoints and evaluations."""
        length = "data.max_response_length"
        self.put("sampling.max_new_tokens", lambda: int(self.get(length)), length)
        for name in ("temperature", "top_p"):
            self.put(f"sampling.{name}", lambda n=name: _unless(float(self.get(f"{R}.{n}")), 1.0), f"{R}.{name}")
        self.put("sampling.top_k", lambda: _positive(self.get(f"{R}.top_k")), f"{R}.top_k")
        self._optimiser()
        self.put("learner.dtype", lambda: "bfloat16", f"{A}.fsdp_config.dtype")
        self.put("learner.freeze_vision_tower", lambda: bool(self.get(f"{A}.freeze_vision_tower")) or None,
                 f"{A}.freeze_vision_tower")  # fmt: skip
        rank, alpha = f"{M}.lora_rank", f"{M}.lora_alpha"
        self.put("learner.lora_rank", lambda: _positive(self.get(rank, f"{M}.lora.rank")), rank)
        if "learner.lora_rank" in self.keys:
            self.put("learner.lora_alpha", lambda: float(self.get(alpha, f"{M}.lora.alpha")), alpha)
        self.keys_read |= {alpha, f"{M}.lora.alpha", f"{M}.lora.rank"}
        self.put("trainer.checkpoint_every", lambda: _positive(self.get("trainer.save_freq")), "trainer.save_freq")
        self.put("eval.every", lambda: _positive(self.get("trainer.test_freq")), "trainer.test_freq")
        template = "data.apply_chat_template_kwargs."
        for key in [key for key in self.overrides if key.startswith(template)]:
            self.put(f"chat.kwargs.{key.removeprefix(template)}", lambda k=key: self.get(k), key)

    def _optimiser(self) -> None:
        """Convert the optimiser; verl's defaults differ from gxpo's, so they are written even if nothing was stated."""
        for ours, theirs in (("lr", "lr"), ("weight_decay", "weight_decay")):
            self.put(f"optim.{ours}", lambda t=theirs: float(self.get(f"{A}.optim.{t}")), f"{A}.optim.{theirs}")
        old, new = f"{A}.optim.grad_clip", f"{A}.optim.clip_grad"
        limit = lambda: self.get(new) if self.get(old) is None else self.get(old)  # noqa: E731
        self.put("optim.max_grad_norm", lambda: _unless(float(limit()), 1.0), old, new)
        if self.is_set(f"{A}.grad_clip") and self.find(f"{A}.grad_clip") != 1.0:
            reason = "without effect in verl 0.9.1, whose engines read optim.clip_grad"
            self.note(f"{A}.grad_clip", f"actor.grad_clip: {reason}")
        self.keys_read.add(f"{A}.grad_clip")
        schedule = tuple(f"{A}.optim.{name}" for name in ("warmup_style", "lr_scheduler_type", "lr_decay_style"))
        self.put("optim.schedule", lambda: _unless(str(self.get(*schedule) or "constant"), "constant"), *schedule)
        warmup, ratio = f"{A}.optim.lr_warmup_steps", f"{A}.optim.lr_warmup_steps_ratio"
        self.put("optim.warmup_steps", self._warmup, warmup, ratio)

    def _warmup(self) -> int | None:
        """Return warm-up in optimiser steps: verl's schedule moves once a step of the trainer."""
        warmup = self.get(f"{A}.optim.lr_warmup_steps")
        steps = int(-1 if warmup is None else warmup)
        if steps < 0:
            share, total = float(self.get(f"{A}.optim.lr_warmup_steps_ratio") or 0), self.keys["trainer.steps"]
            if not share:
                return None
            if total == yamltext.OPEN:
                raise OpenSetting(f"{A}.optim.lr_warmup_steps_ratio={share:g}: this share of the optimiser steps")
            steps = int(share * total)
        updates = [self.keys.get(key, 1) for key in ("update.minibatches", "update.epochs")]
        if yamltext.OPEN in updates and steps:
            raise OpenSetting(f"{A}.optim.lr_warmup_steps={steps}: x the optimiser steps of a step")
        return steps * math.prod(updates) or None if steps else None

    # ------------------------------------------------------------ validation
    def _refuse_invalid(self) -> None:
        """Open the keys whose values gxpo would refuse, each with its reason."""
        for key, value in list(self.keys.items()):
            if key in RUN_KEYS and value != yamltext.OPEN and (problem := _problem_of(key, value)):
                self._open_value(key, problem)
        method = self.keys["method"]
        parts = {
            k: v for k, v in self.keys.items() if k not in RUN_KEYS and not k.startswith(("method", "chat.kwargs."))
        }
        setting_by_key = {k: SettingValue(v, "verl") for k, v in parts.items() if not yamltext.is_open(v)}
        try:
            compose("grpo@verl" if method == yamltext.OPEN else method, setting_by_key)
        except ConfigError as error:
            # the key without which it composes is the one that is wrong: by itself, else with those under it
            spec = "grpo@verl" if method == yamltext.OPEN else method
            for under in (False, True):
                for key in reversed(setting_by_key):
                    remaining_keys = {
                        k: s for k, s in setting_by_key.items() if k != key and not (under and k.startswith(f"{key}."))
                    }
                    if _composes(spec, remaining_keys):
                        return self._open_value(key, str(error))
            self.leave_open("method", str(error))

    def _open_value(self, key: str, problem: str) -> None:
        self.origins[key] = f"{self.origins[key]}: {self.keys[key]}: {problem}"
        self.keys[key] = yamltext.OPEN


def _text_of(value: Any) -> Any:
    return value.text if isinstance(value, Unknown) else value


def _composes(spec: str, keys: Mapping[str, SettingValue]) -> bool:
    try:
        compose(spec, keys)
    except ConfigError:
        return False
    return True


def _problem_of(key: str, value: Any) -> str:
    """Describe what is wrong with a value of a run's setting; "" if nothing is."""
    try:
        RunSettings.model_validate(nest_keys({key: value}))
    except ValidationError as error:
        return error.errors()[0]["msg"].lower()
    return ""


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value


def _above_one(value: int) -> int | None:
    if value < 1:
        raise ValueError(value)
    return _unless(value, 1)


def _positive(value: Any) -> int | None:
    """An integer above 0; None for what switches a setting off."""
    return int(value) if value is not None and int(value) > 0 else None
