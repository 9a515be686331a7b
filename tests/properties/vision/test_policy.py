"""A policy that sees, from sampler to checkpoint: what it samples, what it reads, what a run keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import started

import gxpo
from gxpo.base import media
from gxpo.base.errors import ModelError, RecordError
from gxpo.forest import records
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.models.chat.plain import PlainChat
from gxpo.models.decoder.vision import Vision, vision_of
from gxpo.models.tiny import IMAGE, tiny_model, tiny_vision_model
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.models import character_tokenizer

TOKENIZER = character_tokenizer(IMAGE)
PLACEHOLDER = TOKENIZER.convert_tokens_to_ids(IMAGE)
KEYS = {"tasks.per_step": 3, "rollout.group_size": 4, "sampling.max_new_tokens": 3, "eval.tasks": 4, "eval.every": 2,
        "trainer.rollouts_every": 1, "trainer.checkpoint_every": 1, "optim.lr": 1e-2}  # fmt: skip


def picture(seed: int) -> str:
    return media.PICTURES.put(np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8))


def prompt(vision: Vision, text: str, *refs: str) -> tuple[int, ...]:
    parts = [{"type": "image", "image": ref} for ref in refs] + [{"type": "text", "text": text}]
    return PlainChat(TOKENIZER, vision.ids).start([{"role": "user", "content": parts}]).context


def counted_runs(vision: Vision, monkeypatch) -> list[int]:
    """Numbers of pictures that go through the tower, run by run."""
    counts: list[int] = []
    inputs = type(vision.processor).inputs

    def counting(self, pictures):
        counts.append(len(pictures))
        return inputs(self, pictures)

    monkeypatch.setattr(type(vision.processor), "inputs", counting)
    return counts


def sampled(engine: TorchEngine, prompts: list[tuple[int, ...]], n: int = 4, length: int = 6) -> Forest:
    requests = [Request(p, tuple(StreamKey(0, 0, f"t{i}", j) for j in range(n))) for i, p in enumerate(prompts)]
    actual = engine.sample(requests, Sampling(max_new_tokens=length, stop_ids=(2,)))
    return Forest.from_completions(
        prompts, [[c.tokens for c in group] for group in actual], [[1.0, 0.0] * (n // 2) for _ in prompts],
        logprobs=[[c.logprobs for c in group] for group in actual], sampling={"temperature": 1.0},
    )  # fmt: skip


def test_sampler_and_learner_agree_and_pictures_matter():
    model = tiny_vision_model()
    vision = vision_of(model)
    engine, learner = TorchEngine(model, TOKENIZER), TorchLearner(model, lr=0.0)
    a, b = picture(1), picture(2)
    forest = sampled(engine, [prompt(vision, "row?", a), prompt(vision, "row?", b), prompt(vision, "same?", a, b)])
    actual = learner.outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, atol=1e-5)
    swapped = forest.replace(
        token=torch.tensor([
            media.ids(b, 16)[media.row_of(t)] if t >= media.FIRST and media.ref_of(t) == a else t
            for t in forest.token.tolist()
        ])
    )  # fmt: skip
    assert (learner.outputs(swapped)["logprob"] - actual).abs().max() > 1e-3


def test_a_placeholder_has_probability_zero():
    model = tiny_vision_model()
    vision = vision_of(model)
    output = prompt(vision, "row?", picture(3))
    with torch.no_grad():
        plain = sampled(TorchEngine(model, TOKENIZER), [output], n=8).path_behaviour_logprob
        model.lm_head.weight[PLACEHOLDER] = 50 * torch.sign(model.lm_head.weight[PLACEHOLDER])
        forest = sampled(TorchEngine(model, TOKENIZER), [output], n=8)
    assert PLACEHOLDER not in forest.token[forest.path_token].tolist()
    assert torch.equal(forest.path_behaviour_logprob, plain)
    outputs = TorchLearner(model, lr=0.0).outputs(forest, ("logprob", "entropy"))
    assert torch.allclose(outputs["logprob"], plain, atol=1e-5) and bool(outputs["entropy"].isfinite().all())


def test_a_picture_runs_through_the_tower_once_a_group(monkeypatch):
    model = tiny_vision_model()
    vision = vision_of(model)
    a, b = picture(4), picture(5)
    runs_of_tower = counted_runs(vision, monkeypatch)
    forest = sampled(TorchEngine(model, TOKENIZER), [prompt(vision, "row?", a), prompt(vision, "column?", a, b)], n=8)
    assert runs_of_tower == [2], "one run of the tower, for the two pictures of sixteen samples"
    runs_of_tower.clear()
    TorchLearner(model, lr=0.0).outputs(forest)
    assert runs_of_tower == [2]


def test_a_frozen_tower_stays_as_it_is_and_the_text_model_learns():
    model = tiny_vision_model()
    vision_of(model).freeze()
    learner = TorchLearner(model, lr=1e-2)
    forest = sampled(TorchEngine(model, TOKENIZER), [prompt(vision_of(model), "row?", picture(9))])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    learner.step(forest, lambda x: x["logprob"].sum())
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {n for n in before if n.startswith(("model.language_model", "lm_head"))}


def test_texts_that_name_the_placeholder_stay_texts():
    vision = vision_of(tiny_vision_model())
    message = prompt(vision, "what is <image>?")
    assert PLACEHOLDER not in message and "<image>" in TOKENIZER.decode(message).replace(" ", "")


def test_a_model_that_reads_texts_alone_refuses_pictures():
    vision = vision_of(tiny_vision_model())
    output = [{"role": "user", "content": [{"type": "image", "image": picture(6)}]}]
    with pytest.raises(ModelError, match="reads texts alone"):
        PlainChat(character_tokenizer()).start(output)
    forest = Forest.from_completions([prompt(vision, "row?", picture(6))], [[[5], [6]]], [1.0, 0.0])
    with pytest.raises(ModelError, match="LlamaForCausalLM can't read"):
        TorchLearner(tiny_model(), lr=0.0).outputs(forest)
    with pytest.raises(ModelError, match="without their tokens"):
        bare = Forest.from_completions([[1, 5]], [[[5], [6]]], [1.0, 0.0]).replace(media={0: ("a.png",)})
        TorchLearner(tiny_vision_model(), lr=0.0).outputs(bare)


def test_records_come_back_byte_for_byte_with_their_pictures(tmp_path):
    vision = vision_of(tiny_vision_model())
    a, b = picture(7), picture(8)
    first = prompt(vision, "row?", a)
    again = [*vision.ids(b), *TOKENIZER("and now?", add_special_tokens=False).input_ids]
    turns = [{"action": [5, 6], "logprob": [-1.0, -2.0]}, {"observation": again, "action": [7], "logprob": [-0.5]}]
    line = {"schema": "gxpo.rollouts/1", "group": "g", "prompt": list(first), "reward": 1.0}
    fork = {"of": "t0", "turn": 1, "token": 1}
    forest = Forest.from_records([
        line | {"id": "t0", "turns": turns},
        {**line, "id": "t1", "prompt": [], "fork": fork, "turns": [{"action": [9], "logprob": [-1.5]}]},
        line | {"id": "t2", "turns": [{"action": [8], "logprob": [-1.0]}]},
    ])  # fmt: skip
    assert forest.media == {0: (a,), 2: (b,)}
    records.dump(forest, tmp_path / "r.jsonl")
    text = (tmp_path / "r.jsonl").read_text()
    head, *_ = rows = [json.loads(x) for x in text.splitlines()]
    assert head["prompt"] == [1, *[PLACEHOLDER] * 16, *first[17:]] and head["media_at"] == [[1, 16, a]]
    assert head["turns"][1]["media_at"] == [[0, 16, b]] and "media" not in head["turns"][1]
    assert head["turns"][1]["observation"][:17] == [PLACEHOLDER] * 16 + again[16:17] and len(rows) == 3
    assert sorted(p.name for p in (tmp_path / "media").iterdir()) == sorted(x[7:] for x in (a, b))
    back = records.load(tmp_path / "r.jsonl")
    assert torch.equal(back.token, forest.token) and back.media == forest.media
    (tmp_path / "again").mkdir()
    records.dump(back, tmp_path / "again" / "r.jsonl")
    assert (tmp_path / "again" / "r.jsonl").read_text() == text
    head["media_at"] = [[2, 16, a]]
    with pytest.raises(RecordError, match=r"media_at.*not all one placeholder"):
        Forest.from_records([head])


SCRIPT = """
import os, signal, sys
import gxpo
from gxpo.base import media

media.RETAINED_BYTES = int(os.environ.get("RETAINED", media.RETAINED_BYTES))

def watch(row):
    if row["step"] == int(os.environ.get("KILL_AT", -1)) and "reward_mean" in row:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    out, reward, keys = sys.argv[2], sys.argv[3], eval(sys.argv[4])
    if sys.argv[1] == "train":
        gxpo.train("tiny-vision:cold", "shapes", "grpo", 4, reward, out=out, watch=watch, set=keys)
    else:
        gxpo.resume(out)
"""


def run_script(folder: Path, doing: str, name: str, keys: dict[str, object], kill_at: int = -1, **more: str) -> int:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "parity.py").write_text("def parity(completion):\n    return sum(map(ord, completion)) % 2\n")
    command = [folder / "script.py", doing, name, "parity.py:parity", repr(keys)]
    return started.run(command, cwd=folder, env={**os.environ, "KILL_AT": str(kill_at), **more}).returncode


@pytest.mark.slow
def test_a_killed_run_that_replays_is_resumed_bit_for_bit(tmp_path):
    """The one that is killed retains two or three pictures in memory, and reads the others from its folder."""
    keys = {**KEYS, "rollout": "group_replay", "rollout.choice": "all"}
    assert run_script(tmp_path, "train", "whole", keys) == 0
    assert run_script(tmp_path, "train", "killed", keys, kill_at=3, RETAINED=str(4 << 10)) == -signal.SIGKILL
    output = len(list((tmp_path / "killed" / "rollouts" / "media").iterdir()))
    assert run_script(tmp_path, "resume", "killed", keys, RETAINED=str(4 << 10)) == 0
    actual = []
    for name in ("whole", "killed"):
        rows = [json.loads(x) for x in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        actual.append([{k: v for k, v in r.items() if not k.startswith(("time_", "memory_"))} for r in rows])
    assert (
        actual[0] == actual[1] and len({r["weights_fingerprint"] for r in actual[0]}) == len(actual[0]) == 4 and output
    )
    for full_path in sorted((tmp_path / "whole" / "rollouts").glob("*.jsonl")):
        assert full_path.read_bytes() == (tmp_path / "killed" / "rollouts" / full_path.name).read_bytes()


@pytest.mark.slow
def test_gxpo_is_imported_without_pillow_and_transformers():
    code = "import sys, gxpo.base.media, gxpo.models.decoder.vision; print({'PIL', 'transformers'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_the_example_is_of_at_most_fifteen_lines():
    assert len((Path(gxpo.__file__).parents[2] / "examples" / "shapes.yaml").read_text().splitlines()) <= 15
