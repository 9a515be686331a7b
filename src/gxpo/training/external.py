"""External models of a run (section `teacher`): frozen checkpoints, servers and functions that teach or judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.algorithms.signals.base import SignalPart
from gxpo.base.errors import ConfigError, ModelError, did_you_mean, one_of
from gxpo.base.judges import SEES, FunctionJudge, Judge, Messages, Server
from gxpo.environments.local_judge import LocalJudge
from gxpo.environments.rewards.functions import load as function_of
from gxpo.learning.torch import TorchLearner
from gxpo.methods.method import Method
from gxpo.parts.settings import RunSettings
from gxpo.training.models import load
from gxpo.training.models.load import check_name

TEACHER = "teacher"  # the name of the model that `teacher.model` is
ROLES = ("teacher", "judge")
SOURCES = ("model", "server", "ask")
JUDGE = "judge"  # the reward whose options may name a model


@dataclass(frozen=True)
class External:
    """A frozen model: what it is for, and where it comes from.

    role    "teacher": scores the policy's tokens, so it is a checkpoint with the policy's tokenizer | "judge": answers
            questions in words, or gives the log-probs of a text
    model   a checkpoint, as the setting `model`; of a server the name that it goes by there
    server  address of an OpenAI-compatible server;   ask  `my_judge.py:ask`
    dtype   of a checkpoint;   max_tokens, temperature, timeout, retries, key_from, sees  see `gxpo.base.judges.Server`
    """

    name: str
    role: str
    model: str | None = None
    server: str | None = None
    ask: str | None = None
    dtype: str = "float32"
    key_from: str | None = None
    temperature: float = 0.0
    max_tokens: int = 256
    timeout: float = 60.0
    retries: int = 3
    sees: bool = False

    def __post_init__(self) -> None:
        where = f"teacher.models.{self.name}"
        one_of(f"{where}.role", self.role, ROLES)
        named = [x for x in SOURCES if getattr(self, x) is not None and not (x == "model" and self.server)]
        if len(named) != 1:
            raise ConfigError(f"{where}: give one of model (a checkpoint), server (with model) and ask")
        if self.sees and self.server is None:
            raise ConfigError(f"{where}.sees {SEES}")
        if self.role == "teacher" and named != ["model"]:
            raise ConfigError(
                f"{where}: a teacher scores given tokens, which a {named[0]} does not: give a checkpoint, model=DIR, "
                "or set role: judge"
            )

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint that it is; None where it is none."""
        return None if self.server is not None else self.model


def externals_of(s: RunSettings) -> dict[str, External]:
    """Models of the section `teacher` by name."""
    found: dict[str, External] = {}
    if s.teacher.model is not None:
        found[TEACHER] = External(TEACHER, "teacher", s.teacher.model)
    known = {f.name for f in dataclasses.fields(External)} - {"name"}
    for name, options in s.teacher.models.items():
        for key in options:
            if key not in known:
                there = did_you_mean(key, known) or f"; there is {', '.join(sorted(known))}"
                raise ConfigError(f"teacher.models.{name} has no {key!r}{there}")
        if name in found or "role" not in options:
            raise ConfigError(
                f"teacher.models.{name}: " + ("teacher.model has that name; take another" if name in found else
                f"say its role, one of {', '.join(ROLES)}")
            )  # fmt: skip
        found[name] = External(name, **options)
    return found


def check_externals(s: RunSettings, method: Method) -> None:
    """Refuse models that can't be what they are for, that do not exist, or that nothing uses; nothing is loaded."""
    found = externals_of(s)
    used = {x for part in method.signals.values() for x in SignalPart.hook(part, "external")}
    for name in used:
        if name not in found or found[name].role != "teacher":
            raise ConfigError(
                f"a signal reads the teacher {name!r}, which is not there{did_you_mean(name, found)}: name a "
                "checkpoint, "
                + ("teacher.model=DIR" if name == TEACHER else f"teacher.models.{name}={{role: teacher, model: DIR}}")
            )
    judging = set(_asked_for(s.scoring.options.get(JUDGE, {}), found))
    for name, external in found.items():
        if external.role == "teacher" and name not in used:
            raise ConfigError(
                f"nothing reads the teacher {name!r}: distil from it with signal.teacher=teacher_model and "
                "objective=distillation (or objective.add.distil=distillation), or leave it out"
            )
        if external.role == "judge" and name not in judging:
            raise ConfigError(f"nothing asks the judge {name!r}: set scoring.options.judge.by={name}, or leave it out")
        if external.checkpoint is not None:
            check_name(external.checkpoint, s.task)


def _asked_for(options: Mapping[str, Any], found: Mapping[str, External]) -> list[str]:
    """Names of the judges that the options of the reward name, or mean."""
    names = [x for place in _places(options) if isinstance(x := place.get("by"), str)]
    default = _default(found)
    return names + ([default] if default is not None and not _says_who(options) else [])


def _places(options: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Where the options may say who judges."""
    entries = [*options.get("panel", ()), *options.get("held_out", ()), options.get("refresh", {})]
    return [options, *(x for x in entries if isinstance(x, Mapping))]


def _says_who(options: Mapping[str, Any]) -> bool:
    return any(options.get(x) is not None for x in ("by", "ask", "server"))


def _default(found: Mapping[str, External]) -> str | None:
    """The only judge, which need not be named."""
    judges = [name for name, x in found.items() if x.role == "judge"]
    return judges[0] if len(judges) == 1 else None


@dataclass(frozen=True)
class Checkpoint:
    """Judge that loads its checkpoint when it is first asked."""

    external: External
    load: Callable[[External], LocalJudge]

    @property
    def sees(self) -> bool:
        """Whether it is shown pictures."""
        return self.load(self.external).sees

    def ask(self, messages: Messages) -> str:
        """See `gxpo.base.judges.Judge`."""
        return self.load(self.external).ask(messages)

    def logprob(self, prompt: str, said: str, answer: str) -> float:
        """See `gxpo.base.judges.Believer`."""
        return self.load(self.external).logprob(prompt, said, answer)


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
        self.found = externals_of(self.settings)

    def options(self) -> dict[str, dict[str, Any]]:
        """`scoring.options` with judges in the place of their names."""
        given = self.settings.scoring.options
        default = _default(self.found)
        if JUDGE not in given and default is None:
            return given
        own = dict(given.get(JUDGE, {}))
        if default is not None and not _says_who(own):
            own["by"] = default
        for key in ("panel", "held_out"):
            if isinstance(own.get(key), (list, tuple)):
                own[key] = [self._lent(x) for x in own[key]]
        if isinstance(own.get("refresh"), Mapping):
            own["refresh"] = self._lent(own["refresh"])
        return given | ({JUDGE: self._lent(own)} if JUDGE in given or self._asked else {})

    @property
    def _asked(self) -> bool:
        """Whether the reward "judge" is among the run's."""
        rewards = self.settings.rewards
        return rewards == JUDGE or (isinstance(rewards, Mapping) and JUDGE in rewards)

    def _lent(self, options: Any) -> Any:
        by = options.get("by") if isinstance(options, Mapping) else None
        return options if not isinstance(by, str) else {**options, "by": self.judge(by)}

    def judge(self, name: str) -> Judge:
        """The judge of that name."""
        external = self.found.get(name)
        if external is None or external.role != "judge":
            raise ConfigError(
                f"scoring.options.judge: by={name} is no judge of the section teacher{did_you_mean(name, self.found)}; "
                f"set teacher.models.{name}={{role: judge, model: DIR}} (or server, or ask)"
            )
        if external.ask is not None:
            return FunctionJudge(function_of(external.ask))
        if external.server is None:
            return Checkpoint(external, self._local)
        x = external
        limits: dict[str, Any] = {"timeout": x.timeout, "retries": x.retries, "sees": x.sees}
        return Server(external.server, x.model or "", x.key_from, x.temperature, x.max_tokens, **limits)

    def _local(self, external: External) -> LocalJudge:
        if external.name not in self._judges:
            found = self._loaded(external)
            self._judges[external.name] = LocalJudge(found.model, found.tokenizer, external.max_tokens)
        return self._judges[external.name]

    def _loaded(self, external: External) -> Any:
        name, task = external.checkpoint, self.settings.task
        assert name is not None
        return load(name, task=task, device=self.device, dtype=external.dtype, notify=self.notify)

    def teacher(self, name: str, policy: Any, tokenizer: Any) -> TorchLearner:
        """Frozen learner of that name, which reads the policy's token ids; ModelError unless their tokenizers are
        equal."""
        if not isinstance(policy, TorchLearner):
            raise ConfigError("a teacher reads token ids beside a policy in this process: set cluster.backend=local")
        external = self.found[name]
        found = self._loaded(external)
        if found.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ModelError(
                f"teacher {name} ({external.model}) has another tokenizer than the policy ({self.settings.model}), so "
                "its log-probs are of other tokens: take a teacher with the same one"
            )
        if found.model.get_input_embeddings().num_embeddings > policy.vocabulary:  # rows that no token has
            found.model.resize_token_embeddings(policy.vocabulary)
        return TorchLearner(
            found.model,
            lr=0.0,
            tokens_per_microbatch=policy.tokens_per_microbatch,
            device=policy.device,
            layout=policy.layout,
            attention=policy.attention,
        )
