"""Tables, JSON lines of other programs, TensorBoard event files, configurations beside a run."""

import json
import struct
import zlib

import numpy as np
import pytest

from gxpo.base.errors import RecordError
from gxpo.doctor import read


def one(tmp_path, text, name):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read(tmp_path / name)


def test_wandb_export(tmp_path):
    text = (
        '"Step","warm-sky-7 - train/reward","warm-sky-7 - train/reward__MIN","warm-sky-7 - train/reward__MAX",'
        '"warm-sky-7 - eval/reward"\n"10","0.25","0.25","0.25",""\n"20","0.5","0.5","0.5","0.75"\n"30","NaN","","",""\n'
    )
    log = one(tmp_path, text, "wandb.csv")
    assert log.steps("reward").tolist() == [10, 20]
    assert log.values("reward").tolist() == [0.25, 0.5]
    assert np.isnan(log.series["reward"].values[2])
    assert log.series["eval/reward"].steps.tolist() == [20]
    assert log.key("reward") == "reward"
    assert log.raw == {}


def test_wandb_export_of_two_runs_is_refused(tmp_path):
    text = '"Step","a - train/reward","b - train/reward"\n1,0.5,0.25\n'
    with pytest.raises(RecordError, match=r"w.csv holds 2 runs: a, b: export one of them"):
        one(tmp_path, text, "w.csv")


def test_table_of_a_notebook_in_markdown(tmp_path):
    text = (
        "Look at step 3 | it is odd\n\n"
        "Step | Training Loss | reward | reward_std | completion_length | kl | rewards / match_exactly\n"
        "-- | -- | -- | -- | -- | -- | --\n"
        "1 | 0.000000 | -17.25 | 1.5 | 445.5 | 0.000000 | 0.0\n"
        "2 | -0.000000 | -10.5 | 1.75 | 389.25 | 0.000010 | -0.5\n\nand that was it | really\n"
    )
    log = one(tmp_path, text, "issue.md")
    assert log.source == "trl"
    assert log.values("reward").tolist() == [-17.25, -10.5]
    assert log.values("loss").tolist() == [0, 0]
    assert log.values("component/match_exactly").tolist() == [0, -0.5]
    assert log.values("length").tolist() == [445.5, 389.25]


def test_tabs_and_no_steps(tmp_path):
    log = one(tmp_path, "reward\tgrad_norm\tnote\n0.5\t1.0\tfine\n0.75\t2.0\tbad\n", "t.tsv")
    assert log.steps("reward").tolist() == [1, 2]
    assert log.values("grad_norm").tolist() == [1, 2]


def test_json_lines_with_flags_texts_and_padding(tmp_path):
    rows = [
        {
            "global_step": 1,
            "reward": 0.5,
            "ok": True,
            "note": "x",
            "nested": {"a": 1},
            "eval_reward": None,
            "loss": None,
        },
        {"global_step": 2, "reward": "0.75", "eval_reward": 0.25, "loss": 0.5},
        {"global_step": 3, "reward": float("inf"), "eval_reward": None, "loss": 0.25},
        {"global_step": 3, "reward": 0.125, "eval_reward": None, "loss": 0.125},
        {"global_step": 4, "reward": 1, "eval_reward": 0.5, "loss": float("nan")},
    ]
    log = one(
        tmp_path, "".join(json.dumps(r) + "\n" for r in rows) + "not json\n" + '{"global_step": 5}\n{"glob', "m.jsonl"
    )
    assert log.series["reward"].steps.tolist() == [1, 2, 3, 3, 4]
    assert log.series["reward"].values.tolist() == [0.5, 0.75, float("inf"), 0.125, 1]
    assert log.series["eval/reward"].values.tolist() == [0.25, 0.5]
    assert np.isnan(log.series["loss"].values).tolist() == [True, False, False, False, True]
    assert log.raw == {}
    assert log.notes == [
        "m.jsonl: 1 lines or rows could not be read",
        "m.jsonl: the end is cut short and was left out",
    ]


def record(data):
    """A record of an event file; the checksums are not looked at."""
    return struct.pack("<QI", len(data), 0) + data + struct.pack("<I", zlib.crc32(data))


def field(number, kind, data):
    return bytes([number << 3 | kind]) + data


def event(step, **scalars):
    """tensorflow's Event: 1 wall_time double, 2 step varint, 3 file_version, 5 summary of values (1 tag, 2 float)."""
    values = b""
    for tag, value in scalars.items():
        inner = field(1, 2, bytes([len(tag)]) + tag.encode()) + field(2, 5, struct.pack("<f", value))
        values += field(1, 2, bytes([len(inner)]) + inner)
    return record(
        field(1, 1, struct.pack("<d", 1.0)) + field(2, 0, bytes([step])) + field(5, 2, bytes([len(values)]) + values)
    )


HEADER = record(field(1, 1, struct.pack("<d", 1.0)) + field(3, 2, b"\x0dbrain.Event:2"))


def test_event_file_of_transformers(tmp_path):
    rows = event(1, **{"train/reward": 0.5, "train/rewards/f/mean": 0.5}) + event(2, **{"train/reward": 0.75})
    rows += event(2, **{"eval/reward": 0.25, "eval/rewards/f/mean": 0.25})
    path = tmp_path / "runs" / "events.out.tfevents.1.host"
    path.parent.mkdir()
    path.write_bytes(HEADER + rows + event(3, **{"train/reward": 1.0})[:-9])
    log = read(tmp_path)
    assert log.source == "trl"
    assert log.values("reward").tolist() == [0.5, 0.75]
    assert log.key("component/f") == "rewards/f/mean"
    assert log.values("eval/reward").tolist() == [0.25]
    assert log.notes == ["runs/events.out.tfevents.1.host: the end is cut short and was left out"]


def test_event_file_of_transformers_holds_its_arguments(tmp_path):
    text = b'{"learning_rate": 3e-06, "num_generations": 4, "beta": 0.01, "max_steps": -1, "logging_steps": 5}'
    tensor = field(1, 0, b"\x07") + field(8, 2, bytes([len(text)]) + text)  # a text: 1 type, 8 string_val
    inner = field(1, 2, b"\x11args/text_summary") + field(8, 2, bytes([len(tensor)]) + tensor)
    summary = field(1, 2, bytes([len(inner) & 127 | 128, len(inner) >> 7]) + inner)
    text_event = record(field(5, 2, bytes([len(summary) & 127 | 128, len(summary) >> 7]) + summary))
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(HEADER + text_event + event(5, **{"train/reward": 0.5, "train/reward_std": 0.5}))
    log = read(path)
    assert log.config == {"lr": 3e-6, "group_size": 4, "beta": 0.01}
    assert log.steps("reward").tolist() == [5]


@pytest.mark.parametrize(
    "names",
    [
        ("rollouts/reward_mean", "rollouts/zero_signal_groups", "rollouts/success_rate"),
        ("reward/mean", "zero/signal_groups", "success/rate"),  # of the release before
    ],
)
def test_event_file_of_gxpo(tmp_path, names):
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(HEADER + event(1, **dict(zip(names, (0.5, 0.25, 0.5), strict=True))))
    log = read(path)
    assert log.source == "gxpo"
    assert log.values("reward").tolist() == [0.5]
    assert log.values("zero_signal").tolist() == [0.25]
    assert log.key("zero_signal") == "zero_signal_groups"


def test_event_file_without_the_library_is_a_note(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto", None)
    monkeypatch.delitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", raising=False)
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(HEADER + event(1, **{"train/reward": 0.5}))
    log = read(path)
    assert log.read == []
    assert "pip install 'gxpo[tensorboard]'" in log.notes[0]


ROW = {"step": 1, "reward": 0.5, "reward_std": 0.5, "frac_reward_zero_std": 1.0}


def test_configuration_of_trl(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"log_history": [ROW], "max_steps": 50}))
    (tmp_path / "grpo.yaml").write_text(
        "model_name_or_path: m\nlearning_rate: 1.0e-6\nlr_scheduler_type: cosine\nwarmup_ratio: 0.1\nmax_steps: 50\n"
        "num_generations: 4\nscale_rewards: batch\nmask_truncated_completions: true\nreward_weights: [1.0, 0.5]\n"
        "max_completion_length: 512\nuse_peft: true\ndtype: bfloat16\nbf16: true\n"
    )
    (tmp_path / "config.json").write_text('{"architectures": ["Q"], "model_type": "qwen2", "temperature": 0.1}')
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02never opened")
    log = read(tmp_path)
    assert log.config == {
        "lr": 1e-6,
        "schedule": "cosine",
        "warmup_steps": 5,
        "max_steps": 50,
        "group_size": 4,
        "scale": "batch",
        "mask_truncated": True,
        "reward_weights": [1.0, 0.5],
        "max_tokens": 512,
        "lora": True,
        "dtype": "bfloat16",
    }
    assert "zero_signal" not in log
    assert log.raw["frac_reward_zero_std"].values.tolist() == [1.0]
    assert log.read == ["grpo.yaml", "state.json"]
    assert log.notes == [
        "not opened, as unpickling could run code: training_args.bin",
        "frac_reward_zero_std is of the whole batch with this scaling, not of groups: not used",
    ]


def test_configuration_as_wandb_keeps_it(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps({"log_history": [ROW]}))
    text = "_wandb:\n  value: {cli_version: 0.20.0}\nlearning_rate:\n  value: 1e-05\nnum_generations:\n  desc: null\n"
    (tmp_path / "wandb.yaml").write_text(text + "  value: 8\n")
    assert read(tmp_path).config == {"lr": 1e-5, "group_size": 8}


def test_configuration_of_verl(tmp_path):
    (tmp_path / "run.jsonl").write_text(json.dumps({"step": 1, "data": {"critic/score/mean": 0.5}}) + "\n")
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        "actor_rollout_ref:\n  actor:\n    optim: {lr: 1.0e-06, lr_warmup_steps: -1,"
        " lr_warmup_steps_ratio: 0.1}\n"
        "    use_kl_loss: true\n    kl_loss_coef: 0.001\n    ppo_epochs: 1\n    fsdp_config: {model_dtype: fp32}\n"
        "  rollout: {n: 5, temperature: 1.0, top_k: -1, response_length: '${oc.select:data.max_response_length,512}',"
        " val_kwargs: {temperature: 0, n: 1}}\n  model: {lora_rank: 0}\n"
        "algorithm: {adv_estimator: grpo, norm_adv_by_std_in_grpo: true}\n"
        "data: {max_response_length: 1024}\ntrainer: {total_training_steps: 100}\n"
    )
    for path in (tmp_path, tmp_path / "run.jsonl"):
        assert read(path).config == {
            "lr": 1e-6,
            "warmup_steps": 10,
            "beta": 0.001,
            "epochs": 1,
            "dtype": "float32",
            "group_size": 5,
            "temperature": 1,
            "top_k": -1,
            "max_tokens": 1024,
            "eval_temperature": 0,
            "eval_samples": 1,
            "lora": False,
            "scale": "group",
            "loss_type": "grpo",
            "max_steps": 100,
        }


def test_command_line_and_printed_tree_in_a_console(tmp_path):
    text = (
        "+ python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.optim.lr=1e-6 \\\n"
        "    actor_rollout_ref.rollout.n=8 data.max_response_length=256\n"
        "(TaskRunner pid=1) {'actor_rollout_ref': {'actor': {'ppo_epochs': 2,\n"
        "(TaskRunner pid=1)                                  'entropy_coeff': 0},\n"
        "(TaskRunner pid=1)                        'rollout': {'temperature': 0.7, 'n': 8}}}\n"
        "(TaskRunner pid=1) step:1 - critic/score/mean:0.5 - actor/grad_norm:0.25\n"
    )
    log = one(tmp_path, text, "log")
    assert log.values("reward").tolist() == [0.5]
    assert log.config["lr"] == 1e-6
    assert (log.config["group_size"], log.config["max_tokens"]) == (8, 256)
    assert (log.config["epochs"], log.config["temperature"]) == (2, 0.7)


def test_printed_arguments_of_transformers(tmp_path):
    text = "GRPOConfig(\n_n_gpu=1,\nbeta=0.04,\nlearning_rate=1e-06,\nnum_generations=8,\nbf16=True,\n)\n"
    log = one(tmp_path, text + "{'reward': 0.5, 'reward_std': 0.1}\n", "log")
    assert log.config == {"beta": 0.04, "lr": 1e-6, "group_size": 8}
    assert log.values("reward").tolist() == [0.5]
