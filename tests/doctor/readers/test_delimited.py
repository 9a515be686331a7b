"""Delimited tables: CSV and TSV, tables in Markdown, of boxes and between blanks, folded and turned ones."""

import pytest

from gxpo.doctor import diagnose, read
from gxpo.doctor.readers.delimited import from_delimited


def test_a_trainers_own_step_is_before_wandbs():
    table = from_delimited(
        "Step,r - rollout/step,r - train/step,r - rollout/raw_reward\n7,2,,0.5\n8,,4,\n9,3,,0.75\n", "w.csv"
    )
    assert table is not None and table.rows == [(2.0, {"rollout/raw_reward": 0.5}), (3.0, {"rollout/raw_reward": 0.75})]


def test_a_table_without_steps_and_metrics_is_none():
    assert from_delimited("name,size\na,1\nb,2\nc,3\n", "list.csv") is None


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
        ("0.14 \u2192 0.21", 0.21),
        ("1700+", 1700.0),
        ("0.08\uff08\u6301\u7eed\u4e0b\u964d\uff09", 0.08),
        ("0.45 \u2193", 0.45),
        ("1e-6", 1e-6),
        ("7.03e-06", 7.03e-06),
    ],
)
def test_a_cell_is_a_figure_with_remarks_units_and_signs_around_it(cell, figure):
    table = from_delimited(f"| step | reward |\n|---|---|\n| 1 | {cell} |\n", "t.md")
    assert table is not None and table.rows == [(1.0, {"reward": pytest.approx(figure)})]


@pytest.mark.parametrize("cell", ["\u2014 (val)", "lr=1e-6", "21:19:46", "yes", "11-berl", "0.196 / 0.527"])
def test_a_cell_of_anything_else_is_no_figure(cell):
    table = from_delimited(f"| step | reward | kl |\n|---|---|---|\n| 1 | {cell} | 2 |\n", "t.md")
    assert table is not None and table.rows == [(1.0, {"kl": 2.0})]


def test_three_figures_of_a_cell_are_three_columns():
    text = "| step | reward | staleness avg/max/dropped |\n|---|---|---|\n| 5 | 0.7 | 5.0/5/0 |\n"
    table = from_delimited(text, "t.md")
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
    table = from_delimited(text, "t.md")
    assert table is not None and table.rows == [(1.0, {"reward": 0.1, "KL": 0.3}), (2.0, {"reward": 0.2, "KL": 0.4})]
    other = text.replace("| 2 | 9 | .4 |", "| 3 | 9 | .4 |")
    assert from_delimited(other, "t.md").rows == [(1.0, {"reward": 0.1}), (2.0, {"reward": 0.2})]


def test_a_folded_table_has_the_later_steps_beside_the_earlier():
    text = "| Step | Reward | Step | Reward |\n|---|---|---|---|\n| 1 | .1 | 3 | .3 |\n| 2 | .2 | 4 | .4 |\n\nwords\n"
    table = from_delimited(text, "t.md")
    assert table is not None and [row["Reward"] for _, row in table.rows] == [0.1, 0.2, 0.3, 0.4]
    assert [step for step, _ in table.rows] == [1, 2, 3, 4]
    apart = "| Step | KL | | Step | KL |\n|---|---|---|---|---|\n| 0 | .1 | | 2 | .3 |\n| 1 | .2 | | | |\n"
    table = from_delimited(apart, "t.md")
    assert table is not None and table.rows == [(0.0, {"KL": 0.1}), (1.0, {"KL": 0.2}), (2.0, {"KL": 0.3})]


def test_a_row_with_a_remark_behind_it_ends_no_table():
    text = "| step | reward |\n|---|---|\n| 4 | .1 |\n| 8 | .2 |  <- best\n| 9/20 | .3 |\n"
    table = from_delimited(text, "t.md")
    assert table is not None and table.rows == [(4.0, {"reward": 0.1}), (8.0, {"reward": 0.2}), (9.0, {"reward": 0.3})]


def test_heads_in_chinese_are_read_by_their_parts(tmp_path):
    heads = ("\u6b65\u6570", "\u5e73\u5747 reward", "\u6700\u7ec8\u7b54\u5bf9", "\u5e73\u5747\u56de\u590d\u957f\u5ea6")
    text = "| " + " | ".join(heads) + " |\n|---|---|---|---|\n"
    (tmp_path / "r.md").write_text(text + "| 10 | .1 | 1% | 40 |\n| 20 | .2 | 2% | 50 |\n| 30 | .3 | 3% | 60 |\n")
    run = read(tmp_path / "r.md")
    assert run.values("reward").tolist() == [0.1, 0.2, 0.3]
    assert run.values("success").tolist() == [0.01, 0.02, 0.03] and run.values("length").tolist() == [40, 50, 60]


def test_columns_for_the_beginning_and_the_end_are_two_rows():
    text = "| metric | 1~100 | **531~630** | change |\n|---|---:|---:|---|\n"
    table = from_delimited(text + "| **reward** | 0.60 | 0.39 | -35% |\n| kl | 0.0036 | 0.239 | x66 |\n", "report.md")
    assert table is not None and [row for _, row in table.rows] == [
        {"reward": 0.6, "kl": 0.0036},
        {"reward": 0.39, "kl": 0.239},
    ]
    assert from_delimited("| metric | GRPO | PPO |\n|---|---|---|\n| reward | 0.6 | 0.4 |\n", "arms.md") is None


def test_steps_of_a_turned_table_need_the_word_once():
    text = "| metric | step 3 | 19 | 35 | note |\n|---|---|---|---|---|\n| reward | 0.1 | - | ~0.3 | good |\n"
    table = from_delimited(text, "report.md")
    assert table is not None and [step for step, _ in table.rows] == [3, 19, 35]
    assert [row.get("reward") for _, row in table.rows] == [0.1, None, 0.3]


def test_commas_within_cells_part_thousands_or_decimals():
    table = from_delimited('step,reward,length\n"1,000",0.5,"1,184"\n"2,000",0.6,90\n', "t.csv")
    assert table is not None and table.rows == [
        (1000, {"reward": 0.5, "length": 1184}),
        (2000, {"reward": 0.6, "length": 90}),
    ]
    table = from_delimited("step;reward\n1;0,5\n2;1,25\n", "t.csv")
    assert table is not None and table.rows == [(1, {"reward": 0.5}), (2, {"reward": 1.25})]


def test_a_head_of_numbers_alone_is_of_steps():
    table = from_delimited("| | 0 | 100 | 300 |\n|---|---|---|---|\n| reward | 0.3 | 0.4 | 0.6 |\n", "report.md")
    assert table is not None and [step for step, _ in table.rows] == [0, 100, 300]


def test_a_change_counts_by_its_end_and_a_range_by_its_middle():
    rows = "| 1-100 | 0.06\u21920.25 | 0.7-0.9 |\n| 100-300 | 0.28\u21920.15 | 2 |\n| 300+ | 0.1 | 3 |\n"
    table = from_delimited("| step | reward | entropy |\n|---|---|---|\n" + rows, "report.md")
    assert table is not None and [step for step, _ in table.rows] == [100, 300, 301]
    assert [row["reward"] for _, row in table.rows] == [0.25, 0.15, 0.1]
    assert [row["entropy"] for _, row in table.rows] == pytest.approx([0.8, 2, 3])


@pytest.mark.parametrize(
    "text",
    [
        "| key | seen | of 40 |\n|---|---|---|\n| `reward` | 0 | 40 / 40 |\n| `completions/clipped_ratio` | 1 | |\n",
        "completions/clipped_ratio: 1   reward: 0\nreward_std: 0   loss: 0\n",
    ],
)
def test_keys_with_a_figure_each_are_a_row(tmp_path, text):
    (tmp_path / "report.txt").write_text(text)
    run = read(tmp_path / "report.txt")
    assert run.values("truncated").tolist() == [1.0] and run.values("reward").tolist() == [0.0]


def test_a_comparison_of_runs_is_no_row():
    text = "| metric | base | ours |\n|---|---|---|\n| reward | 0.1 | 0.5 |\n| reward_std | 0.2 | 0.3 |\n"
    assert from_delimited(text, "t.md") is None


def test_a_last_range_without_an_end_is_after_the_others(tmp_path):
    text = "| train_step \u6bb5 | mean KL |\n|---|---|\n| 0\u201350 | 0.3 |\n| 50-200 | 2 |\n| 200\u2013\u672b | 60 |\n"
    (tmp_path / "report.md").write_text(text)
    assert read(tmp_path / "report.md").steps("kl").tolist() == [50, 200, 201]
