"""Credit recomputed on a run's rollouts: signs, sizes and kinds of groups by hand."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.small_run import SMALL, run
from tests.doctor import logs
from tests.explain.rollout_pages import record, write

from gxpo.base.errors import ConfigError, RecordError
from gxpo.explain.run_signal import MOST_STEPS, as_data, signal_in_equal_groups, signal_of_run


def _run(folder, *steps, names=("g0", "g1", "g2")):
    """A run directory of one file a step, each a list of groups of rewards; right is a reward of 1."""
    for number, groups in enumerate(steps, 1):
        rows = [
            record(i, reward, text=f"{i}", group=name, success=None if reward is None else reward == 1.0)
            for name, group in zip(names, groups, strict=False)
            for i, reward in enumerate(group)
        ]
        # Every rollout its own tokens, or the doctor's no_diversity would hold.
        for i, row in enumerate(rows):
            row["id"] = f"t{i}"
            row["turns"][0] |= {"action": [i, i + 100]}
        write(folder / "rollouts" / f"step-{number:06d}.jsonl", rows)
    return folder


def _row(result, name):
    return next(r for r in result.rows if r.method == name)


def test_signal_and_size_of_a_mixed_group(tmp_path):
    # [1, 0]: mean 1/2, deviation sqrt(1/2); GRPO +-.5 / (.707107 + 1e-6) = +-.707106, Dr. GRPO +-.5. The other four
    # rollouts have 0: sizes .707106 sqrt(2/6) = .40825 and .5 sqrt(2/6) = .28868, ratio .70711, the direction is one.
    result = signal_of_run(_run(tmp_path, [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), ["dr_grpo"])
    grpo, dr_grpo = result.rows
    assert (result.base, result.is_own, result.rollouts, result.n_groups) == ("grpo", False, 6, 3)
    assert (grpo.with_signal, grpo.signal) == (1, pytest.approx(1 / 3))
    assert (grpo.size, dr_grpo.size) == (pytest.approx(0.40825, abs=1e-5), pytest.approx(0.28868, abs=1e-5))
    assert dr_grpo.relative == pytest.approx(0.70711, abs=1e-5) and dr_grpo.cosine == pytest.approx(1.0)
    assert (dr_grpo.both, dr_grpo.same_sign, dr_grpo.only_base, dr_grpo.only_method) == (2, 1.0, 0, 0)
    # Within the mixed group alone both rollouts have +-.5.
    assert dr_grpo.by_kind["mixed"] == (1, 1, pytest.approx(0.5)) and dr_grpo.by_kind["all_wrong"] == (1, 0, 0.0)
    assert {k: n for k, n in result.groups.items() if n} == {"all_right": 1, "all_wrong": 1, "mixed": 1}


def test_signal_from_groups_that_are_all_wrong(tmp_path):
    # NGRPO counts a right answer that nobody gave: both rollouts of the all-wrong group are pushed down.
    ngrpo = _row(signal_of_run(_run(tmp_path, [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), ["ngrpo"]), "ngrpo")
    assert ngrpo.with_signal == 2 and (ngrpo.only_method, ngrpo.only_base) == (2, 0)
    assert ngrpo.by_kind["all_wrong"][:2] == (1, 1) and ngrpo.by_kind["all_right"][:2] == (1, 0)


def test_signs_against_a_baseline_of_the_batch(tmp_path):
    # Groups 1 .8 and 0 .2. Within groups: + - and - +. Against the batch's mean .5: .5 .3 -.5 -.3, so that two of four
    # have one sign. Cosine (.5 - .3 + .5 - .3) / (2 sqrt(.25 + .09 + .25 + .09)) = .4 / 1.64924 = .24254.
    result = signal_of_run(_run(tmp_path, [[1.0, 0.8], [0.0, 0.2]]), ["reinforce_pp"])
    row = _row(result, "reinforce_pp")
    assert (row.both, row.same_sign) == (4, 0.5) and row.cosine == pytest.approx(0.24254, abs=1e-4)


def test_kinds_without_verdicts(tmp_path):
    # The scale of the sample is 0 to 2: 2 2 is at its top, 0 0 at its bottom, 1 1 at neither; the last has one score.
    groups = [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [1.0, None]]
    rows = [record(10 * g + i, r, group=f"g{g}") for g, group in enumerate(groups) for i, r in enumerate(group)]
    rows[6]["truncated"] = True
    write(tmp_path / "step-000001.jsonl", rows)
    result = signal_of_run(tmp_path, [])
    of_kind = {"all_right": 1, "all_wrong": 1, "equal": 1, "mixed": 1, "alone": 1}
    # All completions are of the same tokens.
    assert dict(result.groups) == {**of_kind, "truncation": 1, "no_diversity": 5, "missing_scores": 1}


def test_a_lowest_reward_above_zero_is_not_called_wrong(tmp_path):
    rows = [record(i, 0.5, group="g0") for i in range(2)]
    write(tmp_path / "step-000001.jsonl", rows)
    assert signal_of_run(tmp_path, []).groups["equal"] == 1


def test_steps_are_spread_over_the_run(tmp_path):
    folder = _run(tmp_path, *[[[1.0, 0.0]]] * 15)
    result = signal_of_run(folder, [])
    # Eight of 15, 0 and 14 among them, two apart.
    assert result.steps == (1, 3, 5, 7, 9, 11, 13, 15) and len(result.steps) == MOST_STEPS
    assert (result.rollouts, result.rows[0].with_signal) == (16, 8)
    assert signal_of_run(folder, [], step=2).steps == (2,)
    with pytest.raises(RecordError, match="no rollouts of step 99"):
        signal_of_run(folder, [], step=99)


def test_the_base_is_the_run_s_own_method(tmp_path):
    folder = _run(tmp_path, [[1.0, 0.0]])
    (folder / "config.yaml").write_text(f"{SMALL}method: dr_grpo\n")
    result = signal_of_run(folder, ["grpo", "dr_grpo"])
    assert (result.base, result.is_own) == ("dr_grpo", True)
    assert [r.method for r in result.rows] == ["dr_grpo", "grpo"] and result.rows[1].relative == pytest.approx(
        1.41421, abs=1e-5
    )


def test_methods_that_lack_something_are_named(tmp_path):
    result = signal_of_run(_run(tmp_path, [[1.0, 0.0]]), ["gigpo"])
    row = _row(result, "gigpo")
    assert "states" in row.missing and row.signal is None
    assert as_data(result)["methods"][1]["with_signal"] is None
    with pytest.raises(ConfigError, match="unknown method"):
        signal_of_run(tmp_path / "nowhere", ["grop"])


def _table(folder, advantage):
    """A table of TRL: two prompts, a group of two each."""
    columns = {
        "step": [3] * 4, "prompt": ["a?", "a?", "b?", "b?"], "completion": ["1", "2", "3", "4"],
        "right": [1.0, 0.0, 0.0, 0.0], "advantage": advantage,
    }  # fmt: skip
    path = folder / "completions" / "completions_00003.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path)
    return folder


@pytest.mark.parametrize(
    ("advantage", "note"),
    [
        ([0.7, -0.7, 0.0, 0.0], "recorded advantages have the sign of grpo's in 2 of 2 rollouts"),
        ([-0.7, 0.7, 0.0, 0.0], "in 0 of 2 rollouts: the run's own method is another, or its advantages point"),
    ],
)
def test_recorded_advantages_are_held_against_the_base(tmp_path, advantage, note):
    result = signal_of_run(_table(tmp_path, advantage), ["ngrpo"])
    assert any(note in x for x in result.notes), result.notes
    assert any("own method is not known: the base is grpo" in x for x in result.notes)
    assert (result.groups["mixed"], result.groups["all_wrong"]) == (1, 1)


def test_methods_that_give_equal_groups_a_signal_are_counted():
    """Four groups of four, two of them all wrong, one all right: NGRPO's virtual answer learns from the wrong ones."""
    score = [[0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 1]]
    sample = logs.rollouts(
        logs.groups(4, 4, lambda g, m: {"completion": f"{g} {m}", "score": score[g][m], "step": 1 + g % 2})
    )
    assert signal_in_equal_groups(sample, ("grpo", "ngrpo")) == {"grpo": (0, 3), "ngrpo": (2, 3)}
    # PSR-NSR reads verdicts, which these rollouts lack
    assert signal_in_equal_groups(sample, ("psr_nsr",)) == {}
    assert signal_in_equal_groups(sample.select(sample.score == 2)) == {}


def test_the_command(tmp_path):
    folder = _run(tmp_path, [[1.0, 0.0], [0.0, 0.0]])
    code, output, _ = run("signal", "--run", folder, "--methods", "ngrpo")
    assert code == 0 and "grpo (base)" in output and "1 of 1" in output and "not a gain" in output
    code, printed, _ = run("signal", "--run", folder, "--json")
    document = json.loads(printed)
    # The doctor's own choice where no method is named.
    assert [m["method"] for m in document["methods"]] == ["grpo", "ngrpo", "psr_nsr", "reinforce_pp"]
    assert document["kinds"]["all_wrong"] == 1 and document["base_is_own"] is False
    assert document["methods"][0]["of"]["mixed"] == {
        "groups": 1,
        "with_signal": 1,
        "size": pytest.approx(0.70711, abs=1e-5),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--run", "x", "--sizes", "4"], "leave out --sizes"),
        (["tiny", "--run", "x"], "leave out MODEL"),
        (["tiny"], "give MODEL and TASK, or --run RUN"),
        (["tiny", "sums", "--step", "3"], "--step goes with --run"),
        (["--run", "nowhere-at-all"], "no such file or directory"),
    ],
)
def test_arguments_that_do_not_go_together(arguments, message):
    code, _, err = run("signal", *arguments)
    assert code == 2 and message in err and err.count("\n") == 1
