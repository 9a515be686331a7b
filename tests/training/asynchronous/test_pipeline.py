"""Asynchronous runs: the bound on age, reproducibility, kills and resumes, what is dropped, what is refused."""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tests.thorough import some
from tests.training.killed_run import KEYS, REWARD, killed, lines, train

import gxpo
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session, Task
from gxpo.sampling.rollouts import Attempts, Fork, Play, Rollout, Round
from gxpo.training import checkpoint
from gxpo.training.asynchronous.pipeline import Pipeline
from gxpo.training.asynchronous.services import Sampler

OWN = ("dropped_groups", "failed_groups", "mismatch_kl")  # figures of asynchronous runs alone
AHEAD: dict[str, Any] = {"async__max_staleness": 1}


def ledger(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rollouts" / "ledger.jsonl").read_text().splitlines()]


def used(out: Path) -> list[int]:
    """Places in the order in which steps used them."""
    return [place for line in ledger(out) if line["event"] == "consume" for place in line["places"]]


# ---------------------------------------------------------------- the bound
@pytest.mark.slow
@pytest.mark.parametrize("staleness", some([1, 2, 4], [1, 4]))
def test_a_group_is_sampled_under_the_version_of_its_place(tmp_path: Path, staleness: int) -> None:
    rows = train(tmp_path / "run", steps=6, async__max_staleness=staleness)
    ages = [min(n - 1, staleness) for n in range(1, 7)]  # saturated from step staleness + 1 on
    assert [r["staleness_max"] for r in rows] == [r["staleness_mean"] for r in rows] == ages
    sent = [line for line in ledger(tmp_path / "run") if line["event"] == "dispatch"]
    assert [line["version"] for line in sent] == [max(0, line["step"] - 1 - staleness) for line in sent]
    assert [line["step"] for line in sent] == [n for n in range(1, 7) for _ in range(2)]
    assert used(tmp_path / "run") == list(range(12))
    assert all(r["sampler_gap"] is None for r, age in zip(rows, ages, strict=True) if age)  # of older versions none
    apart = [r["mismatch_kl"] for r in rows if r["mismatch_kl"] is not None]  # None: nothing was trained
    assert 0 <= apart[0] < 1e-9 < apart[-1] and all(x >= 0 for x in apart)
    assert all(r["dropped_groups"] == r["failed_groups"] == 0 for r in rows)


def test_the_first_step_is_that_of_a_synchronous_run(tmp_path: Path) -> None:
    sync, ahead = train(tmp_path / "sync", steps=1), train(tmp_path / "ahead", steps=1, **AHEAD)
    assert not (tmp_path / "sync" / "rollouts" / "ledger.jsonl").exists()
    assert not set(OWN) & set(sync[0]) and set(ahead[0]) == {*sync[0], *OWN}
    for name, value in sync[0].items():
        close = pytest.approx(value, rel=1e-5, abs=1e-9) if isinstance(value, float) else value
        assert ahead[0][name] == close or name == "weights_fingerprint", name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nothing is learned")
def test_episodes_of_groups_in_flight_do_not_meet(tmp_path: Path) -> None:
    lake = {"task": "frozenlake", "tasks__options": {"style": "bare", "size": 3, "pool": 2}, "env__max_turns": 3}
    sync = train(tmp_path / "sync", steps=1, **lake)
    ahead = train(tmp_path / "ahead", steps=4, async__max_staleness=2, **lake)
    free = train(tmp_path / "free", steps=4, async__max_staleness=2, async__order="finish", **lake)
    for name in ("turns_mean", "malformed_rate", "generated_tokens", "length_mean", "entropy_sampled", "reward_mean"):
        assert ahead[0][name] == pytest.approx(sync[0][name]) == pytest.approx(free[0][name])
    assert [r["staleness_max"] for r in ahead] == [0, 1, 2, 2] and max(r["staleness_max"] for r in free) <= 2


@pytest.mark.slow
def test_sampling_goes_on_under_new_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 1 is interrupted by version 2, once: the groups of step 3 are of both, each token of one."""
    start = Pipeline._start

    def interrupted_once(self: Pipeline) -> None:
        def until_newer() -> bool:
            if self.stage.engine.policy_version != 1:
                return False
            with self._condition:
                return self._condition.wait_for(lambda: self.schedule.version > 1, 60)

        begun = self._thread is not None
        start(self)
        if not begun:
            self.stage.engine.should_interrupt = until_newer

    monkeypatch.setattr(Pipeline, "_start", interrupted_once)
    keys = {"async__order": "finish", "async__partial": True, "trainer__rollouts_every": 1} | AHEAD
    rows = train(tmp_path / "run", steps=4, **keys)
    path = tmp_path / "run" / "rollouts" / "step-000003.jsonl"
    forest = gxpo.records.load(path)
    token = forest.path_token
    version = forest.policy_version[forest.token_node[token]]
    first = [int(token[forest.path_of(r)][0]) for r in range(forest.n_trajectories)]
    assert set(version.tolist()) == {1, 2}
    assert all(int(v) == (1 if int(t) in first else 2) for t, v in zip(token, version, strict=True))
    long = [r for r in range(forest.n_trajectories) if len(forest.path_of(r)) > 1]
    nodes = [forest.token_node[token[forest.path_of(r)]].unique() for r in long]
    assert long and all(len(own_node) == 2 and forest.turn[own_node].unique().numel() == 1 for own_node in nodes)
    assert rows[2]["staleness_max"] == 1 and 0 <= rows[2]["staleness_mean"] < 1
    gxpo.records.dump(forest, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == path.read_text() and '"versions": [[1, 2]]' in path.read_text()


# ---------------------------------------------------------------- reproducible
@pytest.mark.slow
def test_the_clock_changes_nothing_in_order_of_dispatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler that is always done before the learner goes on, and one that samples only while the learner waits."""
    keys = {"steps": 4, "async__max_staleness": 2, "eval__every": 2, "method": "gae"}
    publish, gather, close, serve = Pipeline.publish, Pipeline.gather, Pipeline.close, Sampler.__call__

    def early(self: Pipeline, version: int) -> None:
        publish(self, version)
        with self._condition:
            self._condition.wait_for(lambda: not self.schedule.unfinished_groups)

    monkeypatch.setattr(Pipeline, "publish", early)
    one = train(tmp_path / "early", **keys)
    monkeypatch.setattr(Pipeline, "publish", publish)
    expected = threading.Event()

    def waiting(self: Pipeline, step: int) -> Any:
        expected.set()
        try:
            return gather(self, step)
        finally:
            expected.clear()

    def late(self: Sampler, calls: Any) -> None:
        assert expected.wait(60)
        serve(self, calls)

    monkeypatch.setattr(Pipeline, "gather", waiting)
    monkeypatch.setattr(Pipeline, "drain", lambda self: None)  # nothing would come while the learner saves
    monkeypatch.setattr(Pipeline, "close", lambda self: (expected.set(), close(self)))
    other = train(tmp_path / "late", **(keys | {"eval__every": 0}))
    assert one[-1]["weights_fingerprint"] == other[-1]["weights_fingerprint"] and len(one) == 4
    assert all({k: v for k, v in a.items() if not k.startswith("eval_")} == {k: b[k] for k in b if "eval_" not in k}
               for a, b in zip(one, other, strict=True))  # fmt: skip


# ---------------------------------------------------------------- killed
def kill(out: Path, at: int, keys: dict[str, Any]) -> None:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.training.killed_run"])
    process = server.Process(target=killed, args=(out, at, keys))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


WRITES = 15  # of the ledger in this run: 6 places are dispatched and finish, 3 steps are trained


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    out = tmp_path_factory.mktemp("calm") / "run"
    return out, train(out, **AHEAD)


# in `make slow`: before anything, between dispatches, between two groups of a step, before an update, at the end
@pytest.mark.slow
@pytest.mark.parametrize("at", some(range(-WRITES, WRITES + 1), (0, -1, 3, 7, -9, 15)))
def test_a_killed_run_resumes_to_the_same_numbers(
    tmp_path: Path, calm: tuple[Path, list[dict[str, Any]]], at: int
) -> None:
    if not at:
        assert len(ledger(calm[0])) == WRITES and used(calm[0]) == list(range(6))
        return
    kill(tmp_path / "run", at, AHEAD)
    gxpo.resume(tmp_path / "run", progress="none")
    assert lines(tmp_path / "run") == calm[1]
    assert used(tmp_path / "run") == list(range(6))  # no prompt is lost, and none is doubled
    one, other = (checkpoint.load(checkpoint.latest(out)) for out in (calm[0], tmp_path / "run"))
    assert all(torch.equal(x, other[0][name]) for name, x in one[0].items())


@pytest.mark.slow
def test_finished_groups_are_read_back_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed when step 2 has just been trained: the groups of step 3 are on the disk and are not sampled again."""
    keys = AHEAD | {"trainer__checkpoint_every": 0}
    calm = train(tmp_path / "calm", **keys)
    kill(tmp_path / "run", WRITES, keys)
    served = Counter[str]()
    serve = Sampler.__call__

    def counted(self: Sampler, calls: Sequence[Any]) -> None:
        served.update(str(call.owner) for call in calls if call.operation == "sample")
        serve(self, calls)

    monkeypatch.setattr(Sampler, "__call__", counted)
    gxpo.resume(tmp_path / "run", progress="none")
    assert lines(tmp_path / "run") == calm and not served and used(tmp_path / "run") == list(range(6))


@pytest.mark.slow
def test_groups_without_records_are_sampled_again_with_a_warning(tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> bool:
        return row["step"] == 2

    keys = KEYS | {"async.max_staleness": 2}
    gxpo.train("tiny:cold", "arithmetic", "grpo", 4, REWARD, out=tmp_path, set=keys, watch=stop, progress="none")
    for path in (tmp_path / "rollouts" / ".groups").rglob("*.jsonl"):
        path.unlink()
    with pytest.warns(UserWarning, match=r"is sampled under version 2 instead of 0: its records are not in"):
        gxpo.resume(tmp_path, progress="none")
    rows = lines(tmp_path)
    assert [r["staleness_max"] for r in rows] == [0, 1, 0, 1] and used(tmp_path) == list(range(8))


@pytest.mark.slow
def test_order_finish_loses_and_doubles_no_group(tmp_path: Path) -> None:
    keys = {"async__max_staleness": 2, "async__order": "finish", "steps": 4}
    for at in (5, 13):
        kill(tmp_path / str(at), at, keys)
        gxpo.resume(tmp_path / str(at), progress="none")
        rows = lines(tmp_path / str(at))
        assert [r["step"] for r in rows] == [1, 2, 3, 4] and max(r["staleness_max"] for r in rows) <= 2
        assert sorted(used(tmp_path / str(at))) == list(range(8))


@pytest.mark.slow
def test_a_source_that_learns_draws_the_same_after_a_resume(tmp_path: Path) -> None:
    """Its tasks depend on how many steps it has seen trained: in step n it has seen n - 2 of them."""
    source = f"{Path(__file__).parents[1] / 'learning_source.py'}:Counting"
    keys = {"task": source, "reward": REWARD, "async__max_staleness": 1}
    calm = train(tmp_path / "calm", **keys)
    asked_tasks = [line["task"] for line in ledger(tmp_path / "calm") if line["event"] == "dispatch"]
    assert asked_tasks == ["0/0", "0/1", "0/0", "0/1", "1/0", "1/1"]
    kill(tmp_path / "run", 12, keys)
    gxpo.resume(tmp_path / "run", progress="none")
    assert lines(tmp_path / "run") == calm


@pytest.mark.slow
def test_a_task_sampler_draws_the_same_after_a_resume(tmp_path: Path) -> None:
    """Rates are those of the steps that were trained before the draw; what is drawn and in flight counts as drawn."""
    pool, held_path = tmp_path / "pool.jsonl", tmp_path / "held.jsonl"
    pool.write_text("\n".join(json.dumps({"id": x, "prompt": f"{x}?", "answer": "1"}) for x in "abcdef"))
    held_path.write_text(json.dumps({"id": "h", "prompt": "h?", "answer": "1"}))
    keys = {
        "task": str(pool),
        "tasks__options": {"held_out": str(held_path)},
        "tasks__sampler": "drop_solved",
        "tasks__sampler__epochs": True,
        "reward": REWARD,
        "async__max_staleness": 1,
    }
    calm = train(tmp_path / "calm", **keys)
    asked_tasks = [line["task"] for line in ledger(tmp_path / "calm") if line["event"] == "dispatch"]
    assert sorted(asked_tasks) == list("abcdef")  # three steps of two: an epoch
    assert [row["tasks_known"] for row in calm] == [2, 4, 6]
    kill(tmp_path / "run", 12, keys)
    gxpo.resume(tmp_path / "run", progress="none")
    assert lines(tmp_path / "run") == calm


# ---------------------------------------------------------------- over age, failures
@dataclass(frozen=True)
class Straggling(Rollout):
    """The first task of step 1 is attempted again and again until the class is told to let go."""

    group_size: int = 2

    let_go: ClassVar[threading.Event] = threading.Event()

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts | Fork]:
        first = play.session.step == 1 and play.step_draws[0].task.id == FIRST
        return [] if self.let_go.is_set() or not first else [play.step_draws[0].attempts(1, first=len(rounds) + 1)]


FIRST = "arithmetic/27+96"  # what step 1 of seed 0 begins with


def straggle(out: Path, until: int, **keys: Any) -> list[dict[str, Any]]:
    Straggling.let_go.clear()

    def watch(row: dict[str, Any]) -> None:
        if row["step"] == until:
            Straggling.let_go.set()

    given_settings = KEYS | {"rollout": Straggling, "async.max_staleness": 1, "async.order": "finish"} | keys
    gxpo.train("tiny:cold", "arithmetic", "grpo", 6, REWARD, out=out, set=given_settings, watch=watch, progress="none")
    return lines(out)


@pytest.mark.slow
def test_a_group_over_age_is_dropped_charged_and_counted(tmp_path: Path) -> None:
    rows = straggle(tmp_path / "run", until=99)
    assert sum(r["dropped_groups"] for r in rows) == 1 and max(r["staleness_max"] for r in rows) <= 1
    (drop,) = [line for line in ledger(tmp_path / "run") if line["event"] == "drop"]
    assert drop["place"] == 0 and drop["generated_tokens"] > 8 and 0 not in used(tmp_path / "run")
    assert rows[-1]["discarded_rollouts"] == drop["rollouts"]
    trained = {line["place"]: line for line in ledger(tmp_path / "run") if line["event"] == "finish"}
    tokens = sum(trained[place]["generated_tokens"] for place in used(tmp_path / "run"))
    assert rows[-1]["generated_tokens"] == tokens + drop["generated_tokens"]
    assert all(r["groups"] == 2 for r in rows)


@pytest.mark.slow
def test_a_group_over_age_may_be_trained(tmp_path: Path) -> None:
    rows = straggle(tmp_path / "run", until=3, **{"async.over_age": "train"})
    assert sum(r["dropped_groups"] for r in rows) == 0 and 0 in used(tmp_path / "run")
    assert max(r["staleness_max"] for r in rows) >= 3


@dataclass(frozen=True)
class Breaking(Rollout):
    """A rollout that fails for the first task of step 2, or for all."""

    group_size: int = 2
    always: bool = False

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        forest = super().grow(tasks, session)
        if self.always or (session.step == 2 and tasks[0].id == "arithmetic/18+26"):
            raise ZeroDivisionError("a fault of the rollout's")
        return forest


@pytest.mark.slow
def test_a_rollout_that_raises_costs_its_group_alone(tmp_path: Path) -> None:
    for order in ("dispatch", "finish"):
        rows = train(tmp_path / order, rollout=Breaking, async__order=order, **AHEAD)
        assert sum(r["failed_groups"] for r in rows) == 1
        assert sum(r["groups"] for r in rows) == (5 if order == "dispatch" else 6)
    with pytest.raises(GxpoError, match=r"all 2 groups .*ZeroDivisionError: a fault of the rollout's"):
        train(tmp_path / "none", rollout=Breaking, rollout__always=True, **AHEAD)


@pytest.mark.slow
def test_a_mismatch_weight_lets_a_method_without_a_ratio_train(tmp_path: Path) -> None:
    rows = train(tmp_path / "run", steps=2, method="gpg", weight__mismatch="truncated", **AHEAD)
    assert rows[-1]["staleness_max"] == 1
