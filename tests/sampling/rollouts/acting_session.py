"""Episodes whose policy follows a script: what it says is a function of what it reads and of the stream's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.seeds import SeedTasks
from gxpo.forest.forest import Forest
from gxpo.models.chat import PlainChat
from gxpo.parts.protocols import Completion, EpisodeRules, Request, Sampling, StreamKey, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models import character_tokenizer
from gxpo.training.session import Session

STEPS = f"{Path(__file__).with_name('countdown_env.py')}:Steps"
TOKENIZER = character_tokenizer()
END = TOKENIZER.eos_token_id

Say = Callable[[str, StreamKey], str]


class Script:
    """An engine that says `say(context, stream)`; token k of a sampled action has log-prob -(k + 1) / 8.

    calls  (requests, sampling) of every call
    """

    policy_version = 0

    def __init__(self, say: Say) -> None:
        self.say = say
        self.calls: list[tuple[list[Request], Sampling]] = []

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        self.calls.append((list(requests), sampling))
        return [[self._said(r.prompt, key, sampling) for key in r.streams] for r in requests]

    def _said(self, context: Sequence[int], key: StreamKey, sampling: Sampling) -> Completion:
        text = self.say(read(context), key)
        tokens = [*TOKENIZER(text, add_special_tokens=False).input_ids, END][: sampling.max_new_tokens]
        sure = sampling.temperature == 0
        return Completion(
            tokens,
            [0.0 if sure else -(k + 1) / 8 for k in range(len(tokens))],
            "stop" if tokens[-1] == END else "length",
        )

    def release(self, names: Sequence[str] | None = None) -> None:
        """Nothing is kept."""

    @property
    def streams(self) -> list[StreamKey]:
        return [key for requests, _ in self.calls for r in requests for key in r.streams]


def read(tokens: Sequence[int]) -> str:
    return TOKENIZER.decode(list(tokens), skip_special_tokens=True)


def acting(envs: Any, say: Say | None = None, *, model: Any = None, step: int = 1, rules: EpisodeRules | None = None,
           sampling: Sampling | None = None, chat: Any = None) -> Session:  # fmt: skip
    """A session in an environment, with a script or with a model."""
    source = SeedTasks("steps", lambda seeds: [str(s) for s in seeds])
    return Session(
        source=source,
        engine=Script(say) if say is not None else TorchEngine(model, TOKENIZER),
        rewards=RewardSet.make(None, source=source),
        tokenizer=TOKENIZER,
        sampling=sampling or Sampling(max_new_tokens=24),
        seed=0,
        step=step,
        chat=chat or PlainChat(TOKENIZER),
        envs=envs,
        episode=rules or EpisodeRules(max_turns=envs.max_turns),
    )


def seeded(session: Session, *seeds: int) -> list[Task]:
    """The tasks of these seeds, known to the session."""
    tasks = [Task(f"steps/{seed}", "", info={"seed": seed}) for seed in seeds]
    session.know(tasks)
    return tasks


def turns_of(forest: Forest, r: int) -> list[dict[str, Any]]:
    """agent, context, said, trained, tokens (stored ones), info of each turn of a trajectory."""
    out = []
    for s in (forest.step_trajectory == r).nonzero().squeeze(1).tolist():
        entries = (forest.path_step == s).nonzero().squeeze(1)
        first = forest.step_nodes(s)[0]
        out.append(
            {
                "agent": forest.agent_names[int(forest.step_agent[s])],
                "context": read(forest.context(int(forest.parent[first]))),
                "said": read(forest.action(s)),
                "trained": forest.path_trainable[entries].unique().tolist(),
                "tokens": forest.path_token[entries].tolist(),
                "entries": entries,
                "info": forest.step_info[s],
                "state": None if int(forest.step_state[s]) < 0 else forest.state_names[int(forest.step_state[s])],
            }
        )
    return out
