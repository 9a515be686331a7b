"""Runs of which only completions were saved yet: the curve of the reward and the verdict come from them."""

import json

import pytest

from gxpo.doctor import diagnose, read

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]


def scores(step):
    """[8] rewards of a step whose mean rises from 0.25 to 0.75 over 12 steps."""
    return [float(m < 2 + step // 3) for m in range(8)]


def texts(step):
    return [f"{WORDS[m]} {WORDS[(step + m) % 8]}" for m in range(8)]


def trl(path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (path / "completions").mkdir()
    for step in range(1, 13):
        table = {"step": [step] * 8, "prompt": [f"q{step}"] * 8, "completion": texts(step), "exact": scores(step)}
        table["advantage"] = [s - 0.5 for s in scores(step)]
        parquet.write_table(pa.table(table), path / "completions" / f"completions_{step:05d}.parquet")


def verl(path):
    for step in range(1, 13):
        rows = zip(texts(step), scores(step), strict=True)
        lines = [{"input": f"q{step}", "output": t, "gts": "one", "score": s, "step": step} for t, s in rows]
        (path / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def ms_swift(path):
    with (path / "completions.jsonl").open("w") as file:
        for step in range(1, 13):
            line = {"step": [str(step)] * 8, "prompt": [f"q{step}"] * 8, "completion": texts(step)}
            line |= {"Exact": scores(step), "advantages": [s - 0.5 for s in scores(step)]}
            file.write(json.dumps(line) + "\n")


def roll(path):
    for step in range(1, 13):
        line = {"global_step": [step] * 8, "prompt": [f"q{step}"] * 8, "responses": texts(step), "scores": scores(step)}
        (path / f"rollout_dump_data.step_{step}.jsonl").write_text(json.dumps(line) + "\n")


def areal(path):
    for step in range(1, 13):
        (path / str(step)).mkdir()
        rows = zip(texts(step), scores(step), strict=True)
        lines = [
            {"task_id": 100 - step, "sample_idx": i, "seqlen": 9, "prompt_len": 4, "head_version": step}
            | {"tail_version": step, "reward": s, "prompt": f"q{step}", "completion": t}
            for i, (t, s) in enumerate(rows)
        ]
        (path / str(step) / f"{100 - step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("write", [trl, verl, ms_swift, roll, areal])
def test_the_reward_is_the_mean_of_each_step(tmp_path, write):
    write(tmp_path)
    log = read(tmp_path)
    assert log.steps("reward").tolist() == list(range(1, 13))
    assert log.values("reward").tolist() == [sum(scores(step)) / 8 for step in range(1, 13)]
    assert log.key("reward") == "mean score of the completions"
    result = diagnose(log)
    assert result.points == 12 and result.is_conclusive
    assert set(log.rollouts.components) <= {"exact", "Exact"}  # numbers of rows and tokens are no rewards


def test_metrics_are_before_curves_of_the_completions(tmp_path):
    verl(tmp_path)
    rows = [{"step": s, "data": {"critic/score/mean": 0.5, "actor/lr": 1e-6}} for s in range(1, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read(tmp_path)
    assert log.key("reward") == "critic/score/mean" and len(log.values("reward")) == 3 and "success" not in log


def test_reward_functions_and_lengths_of_completions_have_curves(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "completions").mkdir()
    for step in range(1, 13):
        table = {"step": [step] * 8, "prompt": [f"q{step}"] * 8, "completion": ["a" * (10 * step)] * 8}
        table |= {"accuracy_reward": [1.0, 0.0] * 4, "style_reward": [step / 12] * 8, "advantage": [0.5, -0.5] * 4}
        parquet.write_table(pa.table(table), tmp_path / "completions" / f"completions_{step:05d}.parquet")
    run = read(tmp_path)
    assert run.values("component/accuracy_reward").tolist() == [0.5] * 12
    assert run.values("length").tolist() == [10.0 * step for step in range(1, 13)]
