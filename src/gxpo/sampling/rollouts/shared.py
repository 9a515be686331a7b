"""Rollouts shared between runs (SAPO of swarms): other runs' completions of this run's tasks, rewarded anew."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Interval

from gxpo.base.errors import ConfigError, GxpoError, RecordError
from gxpo.forest import grouped, records
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count
from gxpo.sampling.rollouts.build import Limit, RolloutPart, group_of, name_draws, random_for, record
from gxpo.sampling.rollouts.reference import in_tokens, lift_restrictions
from gxpo.sampling.rollouts.rounds import Independent

SHARED = "shared"  # their origin in the records


@part("shared", stage="rollout")
@dataclass(frozen=True)
class Shared(RolloutPart):
    """`group_size` samples of each task, and up to `max_foreign_groups` published groups of other runs.

    folders  one of each run: its `rollouts` folder of `gxpo.rollouts/1` (`trainer.rollouts_every: 1` there). It is
             read in every step, so that runs side by side read one another; one without files yet has none to give
    max_foreign_groups  groups of others a step at most, drawn uniformly from those whose rewards differ
    min_probability     completions with a token that this run's policy gives less are rejected (0: none are): what
                        another model would not have written, or nobody's model

    Groups of others are of the step's tasks.

    Only the texts of others are read: they are encoded with this run's tokenizer and template, and rewarded by this
    run's reward. They are of one turn, origin "shared" and group "GROUP/shared/RUN", in folders' order; the behaviour
    log-probs are unknown (`objective.on_unknown_behaviour`). A task is the same if its id and its prompt are. Rejected
    completions are counted as discarded. Source: SAPO, arXiv 2509.08721; rejection: arXiv 2511.09780.
    """

    group_size: Count = 8
    folders: list[str] = field(default_factory=list)
    max_foreign_groups: Limit = 4
    min_probability: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    texts_by_file: dict[str, dict[str, list[tuple[str | None, str]]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    single_turn = True
    has_behaviour = False

    @property
    def across_groups(self) -> bool:
        """True: what other runs have written so far depends on the moment."""
        return True

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        own_forest = Independent(self.group_size).grow(tasks, session)
        lines = [line for number in range(len(self.folders)) for line in self._read_publication(number, tasks, session)]
        if not lines or not self.max_foreign_groups:
            return own_forest
        foreign = session.score(Forest.from_records(lines))
        if self.min_probability:
            foreign = self._plausible(foreign, session)
        # of the groups that teach something, as many as asked for
        differs = foreign.scored & ~grouped.degenerate(foreign.outcome, foreign.ids("group", axis="R"), foreign.scored)
        names = sorted({name for name, keep in zip(foreign.group, differs.tolist(), strict=True) if keep})
        chosen_names = set(random_for(session, SHARED).sample(names, min(self.max_foreign_groups, len(names))))
        rows = torch.tensor([name in chosen_names for name in foreign.group], dtype=torch.bool)
        return Forest.concat([own_forest, foreign.select(rows)]) if bool(rows.any()) else own_forest

    def _read_publication(self, number: int, tasks: Sequence[Task], session: Session) -> list[dict[str, Any]]:
        """Published records of a run for these tasks, encoded anew."""
        texts_by_task = self._texts(self.folders[number])
        sampling, lines = dataclasses.asdict(lift_restrictions(session.sampling)), []
        for task, draw in zip(tasks, name_draws(tasks), strict=True):
            group = f"{group_of(session, draw)}/{SHARED}/{number}"
            texts = [text for prompt, text in texts_by_task.get(task.id, ()) if prompt == task.prompt]
            for k, text in enumerate(texts[-self.group_size :]):
                action = in_tokens(text, session).tokens
                turn = {"action": action, "logprob": [None] * len(action), "finish": "stop", "action_text": text}
                line = record(task, group, f"{group}/{k}", session.sampling, prompt=list(session.encode(task)))
                lines.append(line | {"turns": [turn], "origin": SHARED, "sampling": sampling})
        return lines

    def _texts(self, folder: str) -> dict[str, list[tuple[str | None, str]]]:
        """Prompts and texts by task, of all files of a folder; each file is read once, a bad one is left out."""
        if not Path(folder).is_dir():
            raise ConfigError(f"rollout.folders: there is no folder {folder}: name RUN/rollouts of another run")
        texts_by_task: dict[str, list[tuple[str | None, str]]] = {}
        for file in sorted(Path(folder).glob("*.jsonl")):
            if str(file) not in self.texts_by_file:
                self.texts_by_file[str(file)] = _texts_of(file)
            for task, texts in self.texts_by_file[str(file)].items():
                texts_by_task.setdefault(task, []).extend(texts)
        return texts_by_task

    def _plausible(self, forest: Forest, session: Session) -> Forest:
        """Leave out completions with a token that the policy would hardly write."""
        learner: Any = getattr(session, "learner", None)
        if learner is None:
            raise GxpoError("rollout.min_probability reads the policy's log-probs, which this session has not")
        logprob = learner.outputs(forest, ("logprob",))["logprob"]
        lowest = torch.zeros(forest.n_trajectories, dtype=torch.float64)
        lowest.scatter_reduce_(0, forest.path_trajectory, logprob.to(torch.float64), "amin")
        is_plausible_R = lowest.exp() >= self.min_probability
        session.budget.discarded += int((~is_plausible_R).sum())
        return forest.select(is_plausible_R)


def _texts_of(file: Path) -> dict[str, list[tuple[str | None, str]]]:
    """Prompt and text of the sampled answers of one turn in a file, by task; a file that can't be read has none."""
    try:
        forest = records.load(file)
    except (RecordError, OSError) as error:
        warnings.warn(f"{file}: left out, {error}", stacklevel=2)
        return {}
    texts_by_task: dict[str, list[tuple[str | None, str]]] = {}
    turns = torch.bincount(forest.step_trajectory, minlength=forest.n_trajectories).tolist()
    for r, text in zip(forest.step_trajectory.tolist(), forest.action_text, strict=True):
        # what others have shared is not passed on
        if turns[r] == 1 and text and forest.origin[r] == "policy":
            texts_by_task.setdefault(forest.task[r], []).append((forest.prompt_text[r], text))
    return texts_by_task
