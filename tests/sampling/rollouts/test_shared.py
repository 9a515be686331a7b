"""Rollouts shared between runs: whose texts are read, how they are rewarded, which are left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.sampling.rollouts.team_session import AnswerSession, decoded, encoded

from gxpo.base.errors import ConfigError
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Task
from gxpo.sampling.rollouts.shared import Shared

TASKS = [Task("a", "1+1=", "2"), Task("b", "2+2=", "4")]


def publish(folder: Path, answers: dict[str, list[str]], prompts: dict[str, str] | None = None) -> str:
    """Write a run's rollouts: texts by task, each with a reward of 1, whatever it says."""
    folder.mkdir(exist_ok=True)
    prompt_of = {task.id: str(task.prompt) for task in TASKS} | (prompts or {})
    lines = [
        {"schema": "gxpo.rollouts/1", "task": task, "group": task, "id": f"{task}/{k}", "prompt": [7],
         "prompt_text": prompt_of[task], "reward": 1.0,
         "turns": [{"action": [9, 9], "action_text": text, "logprob": [-0.1, -0.1]}]}
        for task, texts in answers.items() for k, text in enumerate(texts)
    ]  # fmt: skip
    records.dump(Forest.from_records(lines), folder / "rollouts-1.jsonl")
    return str(folder)


class Session(AnswerSession):
    """Own samples are all "?"; the policy gives a token "!" probability 0.0001 and others 0.5."""

    learner = None

    def sample(self, requests: list[Request], sampling: object = None) -> list[list[Completion]]:  # type: ignore[override]
        return [[Completion([63], [-0.5], "stop") for _ in r.streams] for r in requests]

    def score(self, forest: Forest, texts: object = None) -> Forest:  # type: ignore[override]
        answers = [decoded(forest.action(int(s))) for s in (forest.step_turn == 0).nonzero().squeeze(1)]
        outcome = [float(x == self.tasks[t].answer) for x, t in zip(answers, forest.task, strict=True)]
        return forest.with_rewards(torch.tensor(outcome, dtype=torch.float64))

    def outputs(self, forest: Forest, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        tokens = forest.token[forest.path_token]
        return {"logprob": torch.where(tokens == ord("!"), 1e-4, 0.5).log()}


def grow(part: Shared) -> Forest:
    session = Session(lambda *_: "")
    session.learner = session  # type: ignore[assignment]
    return part.grow(session.asked(*TASKS), session)


def test_others_texts_are_encoded_and_rewarded_anew(tmp_path: Path) -> None:
    # all of b's are wrong here, whatever the sender's reward: equal rewards, so the group is left out
    forest = grow(Shared(2, [publish(tmp_path / "other", {"a": ["2", "3"], "b": ["5", "6"]})]))
    foreign = [r for r in range(forest.n_trajectories) if forest.origin[r] == "shared"]
    assert [forest.group[r] for r in foreign] == ["s3/a/shared/0"] * 2
    own = [r for r in range(forest.n_trajectories) if forest.origin[r] == "policy"]
    assert len(own) == 4
    assert forest.select(foreign).outcome.tolist() == [1.0, 0.0]
    assert tuple(forest.select(foreign).action(0)) == (*encoded("2"), 0)
    assert forest.select(foreign).path_behaviour_logprob.isnan().all()


def test_a_task_of_another_prompt_is_another_task(tmp_path: Path) -> None:
    folder = publish(tmp_path / "other", {"a": ["2", "3"]}, {"a": "say 2"})
    assert set(grow(Shared(2, [folder])).origin) == {"policy"}


def test_implausible_completions_are_rejected(tmp_path: Path) -> None:
    folder = publish(tmp_path / "other", {"a": ["2", "3", "!2"]})
    kept = grow(Shared(3, [folder], min_probability=0.001))
    assert sum(origin == "shared" for origin in kept.origin) == 2
    assert sum(origin == "shared" for origin in grow(Shared(3, [folder])).origin) == 3


def test_at_most_so_many_foreign_groups(tmp_path: Path) -> None:
    folders = [publish(tmp_path / name, {"a": ["2", "3"], "b": ["4", "3"]}) for name in ("one", "two")]
    groups = {g for g in grow(Shared(2, folders, max_foreign_groups=3)).group if "shared" in g}
    assert len(groups) == 3 and set(grow(Shared(2, folders, max_foreign_groups=0)).origin) == {"policy"}


def test_a_bad_file_is_left_out_and_a_missing_folder_refused(tmp_path: Path) -> None:
    folder = Path(publish(tmp_path / "other", {"a": ["2", "3"]}))
    (folder / "zz.jsonl").write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match="zz.jsonl: left out"):
        assert "shared" in grow(Shared(2, [str(folder)])).origin
    with pytest.raises(ConfigError, match="there is no folder"):
        grow(Shared(2, [str(tmp_path / "none")]))
