"""Delimited tables: exports of several runs, steps of several kinds, tables that nobody is known to write."""

import pytest

from gxpo.base.errors import RecordError
from gxpo.doctor import diagnose, read
from gxpo.doctor.readers.delimited import read as table_of

TWO = '"Step","a - train/reward","a - train/reward__MIN","b - train/reward"\n1,0.5,0.5,0.25\n2,0.75,0.75,\n'


def test_one_run_of_an_export_of_two(tmp_path):
    (tmp_path / "w.csv").write_text(TWO)
    assert read(tmp_path / "w.csv", run="a").values("reward").tolist() == [0.5, 0.75]
    assert read(tmp_path / "w.csv", run="b").values("reward").tolist() == [0.25]
    with pytest.raises(RecordError, match=r"w.csv holds no run 'c': it holds a, b"):
        read(tmp_path / "w.csv", run="c")


def test_a_trainers_own_step_is_before_wandbs():
    table = table_of(
        "Step,r - rollout/step,r - train/step,r - rollout/raw_reward\n7,2,,0.5\n8,,4,\n9,3,,0.75\n", "w.csv"
    )
    assert table is not None and table.rows == [(2.0, {"rollout/raw_reward": 0.5}), (3.0, {"rollout/raw_reward": 0.75})]


def test_a_table_of_unknown_columns_is_no_verdict(tmp_path):
    (tmp_path / "own.csv").write_text(
        "step,episode_returns_avg,zed\n" + "".join(f"{i},0.5,1\n" for i in range(12)) + "12,0"
    )
    result = diagnose(read(tmp_path))
    assert result.exit_code == 2 and result.read == ["own.csv"]
    assert result.unknown_keys == ["episode_returns_avg", "zed"]
    assert result.advice[0] == "'episode_returns_avg' looks like the reward: --map reward=episode_returns_avg"
    assert result.notes == ["own.csv: 1 lines or rows could not be read"]
    mapped = diagnose(read(tmp_path, mapping={"reward": "episode_returns_avg"}))
    assert mapped.points == 12 and "episode_returns_avg" in mapped.progress


def test_a_table_without_steps_and_metrics_is_none():
    assert table_of("name,size\na,1\nb,2\nc,3\n", "list.csv") is None


def test_a_break_in_a_table_of_six_rows_is_possible(tmp_path):
    (tmp_path / "report.md").write_text(
        "| step | critic/score/mean (acc) | **entropy** | `trunc%` | tokens |\n|---:|---|---|---|---|\n"
        "| 100 | +0.768 | 0.18 | 2% | 4,172 |\n| **115** | **+0.936** | 0.27 | 3% | 4,100* |\n"
        "| 118 (late) | 0.592 | 0.40 | 41% | - |\n| 125 | 0.257 | 1.16 | 40% | 3,900 |\n"
    )
    run = read(tmp_path)
    assert run.values("reward").tolist() == [0.768, 0.936, 0.592, 0.257]
    assert run.values("truncated").tolist() == [0.02, 0.03, 0.41, 0.4]
    assert run.steps("reward").tolist() == [100, 115, 118, 125] and run.raw["tokens"].values.tolist()[0] == 4172
    first = diagnose(run).findings[0]
    assert first.ids[0] == "lr_too_high" and first.grade == "possible" and diagnose(run).exit_code == 1


@pytest.mark.parametrize(
    ("cell", "figure"),
    [
        ("**~0.5**", 0.5),
        ("51 s", 51.0),
        ("10 %", 0.1),
        ("**38.5B**", 3.85e10),
        ("1.2k", 1200.0),
        ("\u22120.989", -0.989),
        ("0.41-0.45", 0.43),
        ("0.14 \u2192 0.21", 0.175),
        ("1700+", 1700.0),
        ("0.08\uff08\u6301\u7eed\u4e0b\u964d\uff09", 0.08),
        ("0.45 \u2193", 0.45),
        ("1e-6", 1e-6),
        ("7.03e-06", 7.03e-06),
    ],
)
def test_a_cell_is_a_figure_with_remarks_units_and_signs_around_it(cell, figure):
    table = table_of(f"| step | reward |\n|---|---|\n| 1 | {cell} |\n", "t.md")
    assert table is not None and table.rows == [(1.0, {"reward": pytest.approx(figure)})]


@pytest.mark.parametrize("cell", ["\u2014 (val)", "lr=1e-6", "21:19:46", "yes", "11-berl", "0.196 / 0.527"])
def test_a_cell_of_anything_else_is_no_figure(cell):
    table = table_of(f"| step | reward | kl |\n|---|---|---|\n| 1 | {cell} | 2 |\n", "t.md")
    assert table is not None and table.rows == [(1.0, {"kl": 2.0})]


def test_three_figures_of_a_cell_are_three_columns():
    text = "| step | reward | staleness avg/max/dropped |\n|---|---|---|\n| 5 | 0.7 | 5.0/5/0 |\n"
    table = table_of(text, "t.md")
    row = {"reward": 0.7, "staleness avg": 5.0, "staleness max": 5.0, "staleness dropped": 0.0}
    assert table is not None and table.rows == [(5.0, row)]


BOX = "| step | reward |\n|-+-|\n| 1 | .1 |\n| 2 | .2 |\n".replace("|", "\u2502").replace("-", "\u2500")
ALIGNED = (
    "words\n\n  step    reward      kl\n------  --------  ------\n     5      0.1   0.01\n    10      0.2   0.02\n"
)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("| Checkpoint | Avg. Reward |\n|---|---|\n| step-10 | 0.1 |\n| ckpt-20 | 0.2 |\n| 30 | 0.3 |\n", [10, 20, 30]),
        (
            "| steps | reward |\n|---|---|\n| 1\u201380 | 0.1 |\n| 81-160 | 0.2 |\n| **161 (late)** | 0.3 |\n",
            [80, 160, 161],
        ),
        ("| metric | step 1 | step 50 | step 90 |\n|---|---|---|---|\n| Mean Reward | .1 | .2 | .3 |\n", [1, 50, 90]),
        ("| Step | 1 | 50 | 90 |\n|---|---|---|---|\n| Mean Reward | .1 | .2 | .3 |\n", [1, 50, 90]),
        (BOX, [1, 2]),
        (ALIGNED, [5, 10]),
        ("step reward kl\n1 0.1 0.01\n2 0.2 0.02\n", [1, 2]),
        ("> | step | reward |\n> |---|---|\n> | 4 | .1 |\n> | 8 | .2 |\n", [4, 8]),
    ],
)
def test_tables_of_several_forms_have_their_steps(tmp_path, text, steps):
    (tmp_path / "report.md").write_text(text)
    run = read(tmp_path / "report.md")
    assert run.steps("reward").tolist() == steps
    assert run.values("reward").tolist() == [0.1, 0.2, 0.3][: len(steps)]


def test_a_second_table_of_the_same_steps_adds_its_columns():
    text = "| step | reward |\n|---|---|\n| 1 | .1 |\n| 2 | .2 |\n\nand\n\n"
    text += "| step | reward | KL |\n|---|---|---|\n| 1 | 9 | .3 |\n| 2 | 9 | .4 |\n"
    table = table_of(text, "t.md")
    assert table is not None and table.rows == [(1.0, {"reward": 0.1, "KL": 0.3}), (2.0, {"reward": 0.2, "KL": 0.4})]
    other = text.replace("| 2 | 9 | .4 |", "| 3 | 9 | .4 |")
    assert table_of(other, "t.md").rows == [(1.0, {"reward": 0.1}), (2.0, {"reward": 0.2})]
