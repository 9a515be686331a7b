"""Rollouts of verl's dumps and gxpo's records: groups, references, forks, held-out files."""

import json

import numpy as np
import pytest

from gxpo.doctor.rollout_files import rollouts


def read(tmp_path, **hints):
    return rollouts(sorted(p for p in tmp_path.rglob("*") if p.is_file()), tmp_path, **hints)


def groups(sample):
    return [np.flatnonzero(sample.group == g).tolist() for g in range(sample.group.max() + 1)]


def dump(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def verl(step, prompt, output, score, **more):
    return {"input": prompt, "output": output, "gts": "4", "score": score, "step": step} | more


def test_verl_rows_are_grouped_by_input(tmp_path):
    rows = [verl(1, "a", "o1", 1.0, acc=True, fmt=0.5), verl(1, "b", "o2", 0.0), verl(1, "a", "o3", 0.0, acc=False)]
    dump(tmp_path / "rollout/1.jsonl", rows)
    dump(tmp_path / "val/1.jsonl", [verl(1, "c", "o4", 1.0, request_id="7")])
    sample, files_read, notes = read(tmp_path)
    assert sample.prompt == ["a", "a", "b", "c"]
    assert sample.group.tolist() == [0, 0, 1, 2]
    assert sample.held_out.tolist() == [False, False, False, True]
    assert sample.reference == ["4"] * 4
    assert np.array_equal(sample.success, [1, 0, np.nan, np.nan], equal_nan=True)
    assert list(sample.components) == ["fmt"]
    assert sample.where == ["rollout/1.jsonl:1", "rollout/1.jsonl:3", "rollout/1.jsonl:2", "val/1.jsonl:1"]
    assert (sample.grouped_by, len(files_read), notes) == ("prompt", 2, [])


def test_verl_rows_with_a_uid_are_grouped_by_it(tmp_path):
    dump(tmp_path / "1.txt", [verl(1, "a", "o", 1.0, uid=u) for u in ("u", "v", "u")])
    sample, _, _ = read(tmp_path)
    assert (sample.group.tolist(), sample.grouped_by) == ([0, 0, 1], "recorded")


@pytest.mark.parametrize(
    ("gts", "reference"),
    [(4, "4"), (4.0, "4"), (["4"], "4"), ({"target": 4}, "4"), (None, None), ({"k": [1, 2]}, '{"k": [1, 2]}')],
)
def test_a_ground_truth_may_be_any_json(tmp_path, gts, reference):
    dump(tmp_path / "1.jsonl", [{"input": "a", "output": "o", "gts": gts, "score": 1.0}])
    assert read(tmp_path)[0].reference == [reference]


def test_a_sample_has_whole_groups_of_all_steps(tmp_path):
    for step in range(1, 11):
        dump(tmp_path / f"{step}.jsonl", [verl(step, f"p{i % 50}", f"o{i}", 0.0) for i in range(200)])
    sample, _, notes = read(tmp_path, keep=100)
    assert sorted(set(sample.step.tolist())) == list(range(1, 11))
    assert {len(g) for g in groups(sample)} == {4}
    assert (len(sample), sample.of) == (80, 2000)
    assert notes == ["a sample of 80 of 2,000 rollouts was read"]


def record(group, n, **more):
    turn = {"action": [5, 6], "logprob": [-1.0, -1.0], "finish": "stop", "action_text": "hi"}
    head = {"schema": "gxpo.rollouts/1", "task": group, "group": group, "id": f"{group}/{n}", "prompt": [1]}
    return head | {"prompt_text": "Q", "turns": [turn], "reward": 1.0} | more


def test_a_critique_holds_the_answers_that_were_sampled_under_it(tmp_path):
    refined = [record("s1/a", n, reward=float(n), info={"refinements": [f"answer {n}"]}) for n in range(2)]
    dump(tmp_path / "rollouts/step-000010.jsonl", refined)
    sample, _, _ = read(tmp_path)
    assert sample.completion == ["hi\n\nanswer 0", "hi\n\nanswer 1"] and sample.score.tolist() == [0, 1]


def test_replies_of_the_environment(tmp_path):
    """A game against others has none that would say what decided the score."""
    turns = [{"action": [2], "action_text": "up"}, {"action": [3], "action_text": "on", "observation_text": "a door"}]
    rows = [record("s1/a", 0, turns=turns), record("s1/a", 1, turns=turns, info={"seat": "X"})]
    dump(tmp_path / "rollouts/step-000010.jsonl", rows)
    sample = read(tmp_path)[0]
    assert sample.observation == ["\n\na door", None]
    assert sample.completion == ["up\n\non"] * 2


def test_records_of_gxpo(tmp_path):
    cut = {"action": [5], "finish": "length", "action_text": "ho"}
    full = {"rewards": {"f": 1.0, "g": None}, "success": True, "info": {"advantage": 0.5}}
    train = [record("s1/a", 0, **full, sampling={"temperature": 0.7}), record("s1/a", 1, turns=[cut], reward=None)]
    fork = record("s1/a", 2, fork={"of": "s1/a/0", "turn": 0, "token": None}, turns=[cut], prompt=[])
    del fork["prompt_text"]
    dump(tmp_path / "rollouts/step-000010.jsonl", [*train, fork])
    dump(tmp_path / "evaluations/step-000010.jsonl", [record("s-1/b", 0)])
    sample, files_read, notes = read(tmp_path)
    assert sample.step.tolist() == [10] * 4 and sample.held_out.tolist() == [False] * 3 + [True]
    assert sample.group.tolist() == [0, 0, 0, 1]
    assert sample.completion == ["hi", "ho", "hi\n\nho", "hi"] and sample.prompt == ["Q"] * 4
    assert np.array_equal(sample.score, [1, np.nan, 1, 1], equal_nan=True)
    assert np.array_equal(sample.components["g"], [np.nan] * 4, equal_nan=True)
    assert sample.tokens.tolist() == [2, 1, 3, 2] and sample.truncated.tolist() == [0, 1, 1, 0]
    assert (sample.advantage[0], sample.temperature[0], sample.success[0]) == (0.5, 0.7, 1.0)
    assert (sample.grouped_by, len(files_read), notes) == ("recorded", 2, [])
