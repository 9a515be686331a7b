"""Rounds of attempts: whatever a rollout of one's own reads and returns, each attempt is scored once and keeps it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.sampling.rollouts.acting_session import acting, seeded
from tests.sampling.rollouts.branching_session import pool

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import EpisodeRules, Sampling, Task
from gxpo.sampling.rollouts import Fork, Rollout


class Digits:
    """A reward that counts what it is shown: a text's last digit is its score, and one that ends with x has none."""

    def __init__(self, inner: Any = None) -> None:
        self.inner, self.shown = inner, Counter[tuple[str, str]]()

    def score(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Forest:
        self.shown.update(zip(forest.id, texts, strict=True))
        if self.inner is not None:
            return self.inner.score(forest, texts, tasks)
        digit = torch.tensor([float("nan") if t.endswith("x") else float(t[-1]) for t in texts], dtype=torch.float64)
        right = torch.where(digit.isnan(), digit, (digit >= 2).double())
        return forest.with_rewards(digit, components={"digit": digit}, success=right)


def prompts() -> Any:
    """A session whose policy says its attempt's number, and an x behind 1; a fork says 7."""

    def say(context, key):
        return "7" if key.path else f"a{key.attempt}" + ("x" if key.attempt == 1 else "")

    session = acting(None, say, rules=EpisodeRules(), sampling=Sampling(max_new_tokens=4))
    session.rewards = Digits()
    return session


def tasks(session: Any) -> list[Task]:
    built_tasks = [Task("p", "p?"), Task("q", "q?")]
    session.know(built_tasks)
    return built_tasks


class Twice(Rollout):
    """Four attempts, then two more, or forks; subclasses read scores in between."""

    group_size: int = 4

    def then(self, rounds, play):
        self.read(rounds, play)
        return self.more(play) if len(rounds) == 1 else []

    def more(self, play):
        return [draw.attempts(2, first=4) for draw in play.step_draws]

    def read(self, rounds, play):
        """Nothing."""


@dataclass(frozen=True)
class Blind(Twice):
    group_size: int = 4


@dataclass(frozen=True)
class ReadsFirst(Twice):
    group_size: int = 4

    def read(self, rounds, play):
        assert rounds[0].scored.n_trajectories == 8


@dataclass(frozen=True)
class ReadsNewest(Twice):
    group_size: int = 4

    def read(self, rounds, play):
        rounds[-1].all_wrong("reads_newest")


@dataclass(frozen=True)
class ReadsSecond(Twice):
    group_size: int = 4

    def read(self, rounds, play):
        if len(rounds) == 2:
            assert rounds[1].scored.id == [e.id for e in rounds[1].episodes]


@dataclass(frozen=True)
class AsksTheSession(Twice):
    group_size: int = 4

    def read(self, rounds, play):
        for _ in range(2):
            play.session.score(play.forest(rounds[0].episodes[:3]))


@dataclass(frozen=True)
class ScoresEachTurn(Twice):
    group_size: int = 4

    def after_turn(self, episodes, play):
        play.session.score(play.forest(episodes))
        return []


@dataclass(frozen=True)
class Forking(ReadsNewest):
    """A fork of each attempt after its first token."""

    forks = True

    def more(self, play):
        return [Fork(e, 0, replace(e.key, path=(0,)), f"{e.name}f", 1) for e in play.episodes]


@dataclass(frozen=True)
class MergesForests(ReadsFirst):
    def merge(self, rounds, play):
        return Forest.concat([r.forest for r in rounds])


@dataclass(frozen=True)
class MergesScored(ReadsFirst):
    def merge(self, rounds, play):
        return Forest.concat([r.scored for r in rounds])


@dataclass(frozen=True)
class MergesHalf(ReadsFirst):
    def merge(self, rounds, play):
        forest = play.forest()
        return forest.select(range(0, forest.n_trajectories, 2))


@dataclass(frozen=True)
class DropsTheAnswer(ReadsFirst):
    """Keeps the forest that it gave to the session, and not what came back."""

    def merge(self, rounds, play):
        forest = play.forest()
        play.session.score(forest)
        return forest


@dataclass(frozen=True)
class GrowsItself(Rollout):
    group_size: int = 4

    def grow(self, tasks, session):
        with self._play(session) as play:
            for first in (0, 4):
                begun = play.begin([draw.attempts(2, first=first) for draw in (play.step_draws or play.draws(tasks))])
                play.finish(begun)
                session.score(play.forest(begun))
            return play.forest()


KINDS = (Blind, ReadsFirst, ReadsNewest, ReadsSecond, AsksTheSession, ScoresEachTurn, Forking, MergesForests,
         MergesScored, MergesHalf, DropsTheAnswer, GrowsItself)  # fmt: skip
SCORES = {"0": 0.0, "1": None, "2": 2.0, "3": 3.0, "4": 4.0, "5": 5.0, "0.0": 7.0, "1.0": 7.0, "2.0": 7.0, "3.0": 7.0}


def test_each_attempt_is_scored_once_and_keeps_its_score() -> None:
    wrong = []
    for kind in KINDS:
        session = prompts()
        forest = session.score(kind().grow(tasks(session), session))
        again = session.score(forest)
        components = dict(zip(forest.component_names, forest.components.unbind(1), strict=True))
        for r, name in enumerate(forest.id):
            want = SCORES[name.split("/")[-1]]
            want = float("nan") if want is None else want
            got = [forest.outcome[r], components["digit"][r], again.outcome[r]]
            if [f"{float(x)}" for x in got] != [f"{want}"] * 3:
                wrong.append(f"{kind.__name__} {name}: {got}, not {want}")
            success = float(forest.success[r])
            if success != (want >= 2) and not (want != want and success != success):
                wrong.append(f"{kind.__name__} {name}: success {success}")
        most = session.rewards.shown.most_common(1)[0]
        if most[1] != 1:
            wrong.append(f"{kind.__name__}: {most[0]} was scored {most[1]} times")
    assert wrong == []


@pytest.mark.slow
def test_each_episode_is_scored_once_and_keeps_its_score() -> None:
    """Half of what is said goes down; an episode scored on its way is another when it has gone on."""
    wrong = []
    for kind in KINDS:
        with pool(start=2, good="a") as world:
            session = acting(world, lambda context, key: "a" if key.attempt % 2 or key.path else "z")
            session.rewards = Digits(session.rewards)
            with warnings.catch_warnings(record=True) as catch_warnings:
                warnings.simplefilter("always")
                forest = session.score(kind().grow(seeded(session, 0, 1), session))
            plain = {**dict(zip(forest.id, forest.outcome.tolist(), strict=True))}
        if kind is DropsTheAnswer:  # it might have taken the outcomes away
            if not any(
                "were scored before in this step and come without an outcome" in str(w.message) for w in catch_warnings
            ):
                wrong.append("no warning")
            continue
        for name, outcome in plain.items():
            last = name.split("/")[-1]
            if outcome != float(int(last.split(".")[0]) % 2 == 1 or "." in last):
                wrong.append(f"{kind.__name__} {name}: {outcome}")
        if (most := session.rewards.shown.most_common(1)[0])[1] != 1:
            wrong.append(f"{kind.__name__}: {most[0]} was scored {most[1]} times")
    assert wrong == []


@dataclass(frozen=True)
class InTeams(ReadsFirst):
    team: str = "second_opinion"


@dataclass(frozen=True)
class TeamOfForks(Forking):
    team: str = "second_opinion"


def test_teams_are_scored_by_their_answers_once() -> None:
    session = prompts()
    forest = session.score(InTeams().grow(tasks(session), session))
    assert forest.outcome.nan_to_num(-1).tolist() == [0.0, -1.0, 2.0, 3.0] * 2 + [4.0, 5.0] * 2
    assert set(session.rewards.shown.values()) == {1}
    session, forking = prompts(), TeamOfForks()
    with pytest.raises(GxpoError, match="a team's attempts can't be forked"):
        forking.grow(tasks(session), session)


@dataclass(frozen=True)
class TakesAway(ReadsFirst):
    how: str = "outcome"

    def merge(self, rounds, play):
        forest, first = rounds[0].scored, torch.arange(8) < 4
        if self.how == "outcome":
            return forest.replace(outcome=forest.outcome.masked_fill(first, torch.nan))
        return forest.replace(
            outcome=forest.outcome.masked_fill(first, torch.nan),
            success=forest.success.masked_fill(first, torch.nan),
            components=forest.components.masked_fill(first[:, None], torch.nan),
            info=[{"failure": "not this one"} if own_value else {} for own_value in first.tolist()],
        )


@pytest.mark.parametrize("how", ["outcome", "failure"])
def test_what_a_rollout_leaves_unscored_stays_so(how: str) -> None:
    session = prompts()
    forest = session.score(TakesAway(how=how).grow(tasks(session), session))
    assert not bool(forest.scored[:4].any()) and forest.outcome[4:].nan_to_num(-1).tolist() == [0.0, -1.0, 2.0, 3.0]


@dataclass(frozen=True)
class Anew(Rollout):
    """Attempts, and two each that go on behind their first tokens, with those as their prompt."""

    group_size: int = 2
    token: int = 2
    turn: int = 0
    forks = True

    def then(self, rounds, play):
        if len(rounds) > 1:
            return []
        return [
            Fork(e, self.turn, replace(e.key, path=(i,)), f"{e.name}{i}", self.token, {"n": i}, anew=True)
            for e in rounds[0].episodes
            for i in range(2)
        ]


@pytest.mark.parametrize("token", [0, 2])
def test_what_comes_before_a_fork_anew_is_its_prompt(token: int) -> None:
    session = prompts()
    forest = session.score(Anew(token=token).grow(tasks(session), session))
    prompt = [session.decode(forest.context(int(node))) for node in forest.prompt_node]
    assert prompt[:4] == ["p?", "p?", "q?", "q?"]
    message = ["a0", "a0", "a1", "a1"] if token else [""] * 4
    assert prompt[4:] == [f"{p}{text}" for p, text in zip(["p?"] * 4 + ["q?"] * 4, message * 2, strict=True)]
    assert [session.decode(forest.action(s)) for s in range(4, 12)] == ["7"] * 8
    assert forest.id[4:6] == ["s1/p/0.0", "s1/p/0.1"] and forest.info[5] == {"n": 1}
    assert forest.group == ["s1/p"] * 2 + ["s1/q"] * 2 + ["s1/p"] * 4 + ["s1/q"] * 4
    trained = [forest.token[forest.path_token[forest.path_of(r)]].tolist() for r in range(12)]
    assert all(len(tokens) == 2 for tokens in trained[4:])  # "7" and the end
    assert bool(forest.path_trainable.all()) and forest.outcome[4:].tolist() == [7.0] * 8
    sampled = [r.prompt for requests, _ in session.engine.calls for r in requests][-8:]
    assert {session.decode(p) for p in sampled} == set(prompt[4:])


def test_an_episode_goes_on_anew_within_an_action() -> None:
    """The environment hears the whole action, of which the first token is context."""
    with pool(start=3, good="ab") as world:
        session = acting(world, lambda context, key: "b" if key.path else "ac")
        forest = session.score(Anew(group_size=1, token=1, turn=1).grow(seeded(session, 0), session))
    first, other, _ = (forest.token[forest.path_token[forest.path_of(r)]].tolist() for r in range(3))
    assert session.decode(first).startswith("ac") and "a" not in session.decode(other)
    start = session.decode(forest.context(int(forest.prompt_node[1])))
    assert start.endswith("a") and "ac" in start
    assert bool(forest.scored.all())


def test_forks_that_can_t_be_are_refused() -> None:
    wrong = {
        "leaves it before turn 1: it has turns 0 to 0": dict(turn=1),
        "leaves it before turn -1": dict(turn=-1),
        "leaves turn 0 after 9 tokens: its action has 3": dict(token=9),
        "leaves turn 0 after -1 tokens": dict(token=-1),
        "is named 'p/0', as another attempt is": dict(name="p/0"),
        "two attempts have the id 's1/p/0'": dict(path=()),
    }
    for message, given in wrong.items():

        @dataclass(frozen=True)
        class Forks(Rollout):
            group_size: int = 1
            forks = True

            def then(self, rounds, play, given=given):
                if len(rounds) > 1:
                    return []
                base = rounds[0].episodes[0]
                key = replace(base.key, path=given.get("path", (1,)))
                return [Fork(base, given.get("turn", 0), key, given.get("name", "p/f"), given.get("token", 0))]

        session = prompts()
        with pytest.raises(GxpoError, match=message):
            Forks().grow(tasks(session)[:1], session)


@dataclass(frozen=True)
class Gives(Rollout):
    """Wrong values in the place of what its methods have to give."""

    group_size: int = 1
    where: str = "then"
    value: Any = None

    def first(self, draws, play):
        return self.value if self.where == "first" else super().first(draws, play)

    def then(self, rounds, play):
        return self.value if self.where == "then" else []

    def merge(self, rounds, play):
        return self.value if self.where == "merge" else super().merge(rounds, play)


def test_what_a_rollout_gives_is_checked() -> None:
    cases = {
        ("first", None): r"first \(test_rounds.py line \d+, in first\) gave None; it has to give a list of draw",
        ("then", None): r"then \(test_rounds.py line \d+, in then\) gave None; it has to give a list of draw",
        ("then", "x"): r"then .* gave str; it has to",
        ("then", ("x",)): r"then .* gave a tuple with str; it has to",
        ("merge", None): r"rollout .*Gives .* gave NoneType; grow and merge have to give a Forest",
        ("merge", ()): r"rollout .*Gives .* gave tuple; grow and merge have to give a Forest",
    }
    for (where, value), message in cases.items():
        session = prompts()
        with pytest.raises(GxpoError, match=message):
            session.grow(Gives(where=where, value=value), tasks(session))
    session = prompts()
    with pytest.raises(GxpoError, match=r"a rollout of task 'r' can't be scored: this step has not drawn it"):
        session.score(Blind().grow([Task("r", "?")], session))
