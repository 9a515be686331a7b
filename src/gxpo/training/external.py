"""External models of a run (section `teacher`): frozen checkpoints, servers and functions that teach or judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.algorithms.signals.base import SignalPart
from gxpo.base.errors import ConfigError, ModelError, did_you_mean, one_of
from gxpo.base.judges import VISION_HINT, FunctionJudge, Judge, Messages, Server
from gxpo.environments.local_judge import LocalJudge
from gxpo.environments.rewards.functions import load as function_of
from gxpo.learning.torch import TorchLearner
from gxpo.methods.method import Method
from gxpo.parts.settings import RunSettings
from gxpo.training.models import load
from gxpo.training.models.load import check_name

TEACHER = "teacher"  # the name of the model that `teacher.model` is
ROLES = ("teacher", "judge")
SOURCES = ("model", "server", "function")
JUDGE = "judge"  # the reward whose options may name a model


@dataclass(frozen=True)
class External:
    """Frozen model: its role, and its source.

    role    "teacher": scores the policy's tokens, so it is a checkpoint with the policy's tokenizer | "judge": answers
            questions in words, or gives the log-probs of a text
    model   a checkpoint, as the setting `model`; of a server the name that it goes by there
    server  address of an OpenAI-compatible server;   function  `my_judge.py:ask`
    dtype   of a checkpoint;   max_tokens, temperature, timeout, retries, key_from, vision  see
            `gxpo.base.judges.Server`
    """

    name: str
    role: str
    model: str | None = None
    server: str | None = None
    function: str | None = None
    dtype: str = "float32"
    key_from: str | None = None
    temperature: float = 0.0
    max_tokens: int = 256
    timeout: float = 60.0
    retries: int = 3
    vision: bool = False

    def __post_init__(self) -> None:
        where = f"teacher.models.{self.name}"
        one_of(f"{where}.role", self.role, ROLES)
        # A server has a model's name too, which makes it no checkpoint.
        sources = [x for x in SOURCES if getattr(self, x) is not None and not (x == "model" and self.server)]
        if len(sources) != 1:
            raise ConfigError(f"{where}: give one of model (a checkpoint), server (with model) and function")
        if self.vision and self.server is None:
            raise ConfigError(f"{where}.vision {VISION_HINT}")
        if self.role == "teacher" and sources != ["model"]:
            raise ConfigError(
                f"{where}: a teacher scores given tokens, which a {sources[0]} does not: give a checkpoint, model=DIR, "
                "or set role: judge"
            )

    @property
    def checkpoint(self) -> str | None:
        """The name of its checkpoint; None for a server or a function."""
        return None if self.server is not None else self.model


def externals_of(s: RunSettings) -> dict[str, External]:
    """Build the external models of the section `teacher`, by name."""
    external_by_name: dict[str, External] = {}
    if s.teacher.model is not None:
        external_by_name[TEACHER] = External(TEACHER, "teacher", s.teacher.model)
    field_names = {f.name for f in dataclasses.fields(External)} - {"name"}
    for name, options in s.teacher.models.items():
        for key in options:
            if key not in field_names:
                hint = did_you_mean(key, field_names) or f"; there is {', '.join(sorted(field_names))}"
                raise ConfigError(f"teacher.models.{name} has no {key!r}{hint}")
        if name in external_by_name or "role" not in options:
            raise ConfigError(
                f"teacher.models.{name}: teacher.model has that name; choose another"
                if name in external_by_name
                else f"teacher.models.{name}: set its role, one of {', '.join(ROLES)}"
            )
        external_by_name[name] = External(name, **options)
    return external_by_name


def check_externals(s: RunSettings, method: Method) -> None:
    """Refuse models that can't be what they are for, that do not exist, or that nothing uses; nothing is loaded."""
    external_by_name = externals_of(s)
    used_names = {x for part in method.signals.values() for x in SignalPart.hook(part, "external")}
    # A signal that reads a teacher fails in its first step otherwise, after the model is loaded.
    for name in used_names:
        if name not in external_by_name or external_by_name[name].role != "teacher":
            raise ConfigError(
                f"a signal reads the teacher {name!r}, which is not there{did_you_mean(name, external_by_name)}: "
                "name a checkpoint, "
                + ("teacher.model=DIR" if name == TEACHER else f"teacher.models.{name}={{role: teacher, model: DIR}}")
            )
    judges = set(_judge_names(s.scoring.options.get(JUDGE, {}), external_by_name))
    for name, external in external_by_name.items():
        # An unused teacher is mostly a key of the objective that was forgotten.
        if external.role == "teacher" and name not in used_names:
            raise ConfigError(
                f"nothing reads the teacher {name!r}: distil from it with signal.teacher=teacher_model and "
                "objective=distillation (or objective.add.distil=distillation), or leave it out"
            )
        if external.role == "judge" and name not in judges:
            raise ConfigError(
                f"nothing asks the judge {name!r}: set scoring.options.judge.teacher={name}, or leave it out"
            )
        if external.checkpoint is not None:
            check_name(external.checkpoint, s.task)


def _judge_names(options: Mapping[str, Any], external_by_name: Mapping[str, External]) -> list[str]:
    """Names of the judges that the options of the reward name, or leave to the only one."""
    names = [x for place in _judge_options(options) if isinstance(x := place.get("teacher"), str)]
    default = _only_judge(external_by_name)
    return names + ([default] if default is not None and not _names_a_judge(options) else [])


def _judge_options(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The mappings in the options that may name a judge: themselves, panel, held-out judges, refresh."""
    entries = [*options.get("panel", ()), *options.get("held_out", ()), options.get("refresh", {})]
    return [options, *(x for x in entries if isinstance(x, Mapping))]


def _names_a_judge(options: Mapping[str, Any]) -> bool:
    return any(options.get(x) is not None for x in ("teacher", "function", "server"))


def _only_judge(external_by_name: Mapping[str, External]) -> str | None:
    """Name of the only judge, which need not be stated; None without one, or with several."""
    judges = [name for name, x in external_by_name.items() if x.role == "judge"]
    return judges[0] if len(judges) == 1 else None


@dataclass(frozen=True)
class Checkpoint:
    """Judge that loads its checkpoint on its first question."""

    external: External
    load: Callable[[External], LocalJudge]

    @property
    def vision(self) -> bool:
        """True if it is shown pictures."""
        return self.load(self.external).vision

    def ask(self, messages: Messages) -> str:
        """See `gxpo.base.judges.Judge`."""
        return self.load(self.external).ask(messages)

    def logprob(self, prompt: str, reply: str, answer: str) -> float:
        """See `gxpo.base.judges.Believer`."""
        return self.load(self.external).logprob(prompt, reply, answer)


@dataclass
class Externals:
    """The external models of a run, each loaded once, where it is first needed.

    device  where checkpoints are put
    """

    settings: RunSettings
    device: str
    notify: Callable[[str], None] = lambda line: None
    _judges: dict[str, LocalJudge] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.external_by_name = externals_of(self.settings)

    def options(self) -> dict[str, dict[str, Any]]:
        """`scoring.options` with judges in the place of their names."""
        reward_options = self.settings.scoring.options
        default = _only_judge(self.external_by_name)
        if JUDGE not in reward_options and default is None:
            return reward_options
        judge_options = dict(reward_options.get(JUDGE, {}))
        # A single judge is meant wherever no other is named.
        if default is not None and not _names_a_judge(judge_options):
            judge_options["teacher"] = default
        for key in ("panel", "held_out"):
            if isinstance(judge_options.get(key), (list, tuple)):
                judge_options[key] = [self._with_judge(x) for x in judge_options[key]]
        if isinstance(judge_options.get("refresh"), Mapping):
            judge_options["refresh"] = self._with_judge(judge_options["refresh"])
        return reward_options | (
            {JUDGE: self._with_judge(judge_options)} if JUDGE in reward_options or self._uses_judge else {}
        )

    @property
    def _uses_judge(self) -> bool:
        """True if the reward "judge" is among the run's."""
        rewards = self.settings.rewards
        return rewards == JUDGE or (isinstance(rewards, Mapping) and JUDGE in rewards)

    def _with_judge(self, options: Any) -> Any:
        teacher = options.get("teacher") if isinstance(options, Mapping) else None
        return options if not isinstance(teacher, str) else {**options, "teacher": self.judge(teacher)}

    def judge(self, name: str) -> Judge:
        """The judge of that name."""
        external = self.external_by_name.get(name)
        if external is None or external.role != "judge":
            hint = did_you_mean(name, self.external_by_name)
            raise ConfigError(
                f"scoring.options.judge: teacher={name} is no judge of the section teacher{hint}; "
                f"set teacher.models.{name}={{role: judge, model: DIR}} (or server, or function)"
            )
        if external.function is not None:
            return FunctionJudge(function_of(external.function))
        if external.server is None:
            return Checkpoint(external, self._local_judge)
        x = external
        limits: dict[str, Any] = {"timeout": x.timeout, "retries": x.retries, "vision": x.vision}
        return Server(external.server, x.model or "", x.key_from, x.temperature, x.max_tokens, **limits)

    def _local_judge(self, external: External) -> LocalJudge:
        if external.name not in self._judges:
            loaded = self._load(external)
            self._judges[external.name] = LocalJudge(loaded.model, loaded.tokenizer, external.max_tokens)
        return self._judges[external.name]

    def _load(self, external: External) -> Any:
        name, task = external.checkpoint, self.settings.task
        assert name is not None
        return load(name, task=task, device=self.device, dtype=external.dtype, notify=self.notify)

    def teacher(self, name: str, policy: Any, tokenizer: Any) -> TorchLearner:
        """Frozen learner of that name, which reads the policy's token ids; ModelError unless their tokenizers are
        equal."""
        if not isinstance(policy, TorchLearner):
            raise ConfigError("a teacher reads token ids beside a policy in this process: set cluster.backend=local")
        external = self.external_by_name[name]
        loaded = self._load(external)
        # Equal sizes are not enough: ids have to mean the same tokens.
        if loaded.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ModelError(
                f"teacher {name} ({external.model}) has another tokenizer than the policy ({self.settings.model}), so "
                "its log-probs are of other tokens: take a teacher with the same one"
            )
        if loaded.model.get_input_embeddings().num_embeddings > policy.vocabulary:  # rows that no token has
            loaded.model.resize_token_embeddings(policy.vocabulary)
        return TorchLearner(
            loaded.model,
            lr=0.0,
            tokens_per_microbatch=policy.tokens_per_microbatch,
            device=policy.device,
            layout=policy.layout,
            attention=policy.attention,
        )
