"""TensorBoard logger: steps of a resumed run, tags, texts."""

import pytest
from tests.training.callbacks.parity import REWARD
from tests.training.callbacks.stored import KEYS, in_events, lines, single

import gxpo
from gxpo.training.callbacks.loggers import _markdown_cell, tag


@pytest.mark.slow
def test_a_resumed_run_has_every_metric_of_every_step_once(tmp_path):
    def watch(row):
        if row["step"] == 3:
            raise RuntimeError("out of power")

    keys = KEYS | {"trainer.callbacks": ["tensorboard"]}
    with pytest.raises(RuntimeError, match="out of power"):
        gxpo.train(reward=REWARD, steps=4, out=tmp_path / "run", set=keys, watch=watch)
    run = gxpo.resume(tmp_path / "run")
    stored, events = in_events(run.path)
    assert stored == single(lines(run.path))
    assert [event.step for event in events.Scalars("rollouts/zero_signal_groups")] == [1, 2, 3, 4]
    assert [event.step for event in events.Scalars("eval/eval_accuracy")] == [0, 2, 4]
    tables = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("samples/train/text_summary")]
    assert len(tables) == 2 and tables[0].startswith("| task | prompt | completion | reward |")


def test_markdown_in_texts_is_escaped():
    assert (
        _markdown_cell("a|b\n*c* <d>") == r"a\|b<br>\*c\* &lt;d&gt;"
        and _markdown_cell(None) == ""
        and _markdown_cell(0.123456) == "0.1235"
    )


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("eval_accuracy", "eval/eval_accuracy"),
        ("memory_peak_mb", "time/memory_peak_mb"),
        ("length_mean", "rollouts/length_mean"),
        ("generated_tokens", "tokens/generated_tokens"),
        ("grad_norm", "update/grad_norm"),
    ],
)
def test_a_tag_is_the_group_of_a_metric_and_its_name(metric, expected):
    assert tag(metric) == expected
