"""The report: all escaped, nothing fetched, readable however little of the run there is; the charts' geometry."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gxpo.base.errors import CheckpointError
from gxpo.doctor.finding import Diagnosis, Finding
from gxpo.training.metrics import MetricsFile
from gxpo.training.report import summary, write_report

HOSTILE = "</pre></td><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;<!-- \u202e \x00 ]]> {{7*7}}"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that elements are closed in order, and remembers what there is."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(k, v or "") for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(k, v or "") for k, v in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def report(run: Path) -> Page:
    path = write_report(run)
    assert path == run / "report.html"
    raw = path.read_text(encoding="utf-8")
    page = Page(raw)
    assert not {"script", "img", "link", "iframe", "object"} & set(page.tags)
    assert not [k for k, _ in page.attributes if k.startswith("on") or k in ("src", "href")]
    assert "url(" not in raw and "@import" not in raw
    assert set(re.findall(r"https?://[^\"'\s]*", raw)) <= {"http://www.w3.org/2000/svg"}
    return page


def record(i: int, reward: float | None, **fields: object) -> dict:
    turn = {"agent": "a", "action": [1, 2], "action_text": f"answer {i}", "finish": "stop"}
    return {
        "schema": "gxpo.rollouts/1", "task": f"task/{i // 4}", "group": f"g{i // 4}", "id": f"t{i}", "prompt": [5],
        "prompt_text": f"question {i // 4}", "turns": [turn], "reward": reward,
        "rewards": {"correct": reward, "format": 1.0}, "info": {"advantage": 0.123456 * i}, **fields,
    }  # fmt: skip


def write_records(run: Path, step: int, records: list[dict]) -> Path:
    path = run / "rollouts" / f"step-{step:06d}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def whole_run(run: Path, steps: int = 30) -> None:
    (run / "config.yaml").write_text("method: grpo  # default\nseed: 0\n")
    evaluations = MetricsFile(run / "evaluations.jsonl")
    for step in (0, 15, 30):
        evaluations.append({"step": step, "eval_accuracy": 0.4 + step / 100, "eval_low": 0.37 + step / 100,
                            "eval_high": 0.43 + step / 100, "eval_tasks": 1000.0, "eval_pass_at_8": 0.875})  # fmt: skip
    file = MetricsFile(run / "metrics.jsonl")
    for step in range(1, steps + 1):
        file.append({
            "step": step, "reward_mean": 0.4 + 0.01 * step, "success_rate": 0.3 + 0.01 * step, "kl": None,
            "zero_signal_groups": 0.2, "entropy": 1 / step, "clip_fraction": 0.0, "length_mean": 20 + math.sin(step),
            "truncated_rate": 0.01, "grad_norm": float("nan") if step == 7 else 1.0, "unscored": step % 2,
            "generated_tokens": 1000 * step, "discarded_rollouts": 3, "empty_steps": 1,
            "weights_fingerprint": 123456789,
            "time_step_s": 2.5, "time_sample_s": 1.5, "time_sample_tokens_per_s": 5e3, "time_update_tokens_per_s": 2e4,
        })  # fmt: skip
    for step in (10, 20, 30):
        write_records(run, step, [record(i, float(i % 4 == step // 10)) for i in range(24)])


def test_a_whole_run(tmp_path: Path) -> None:
    whole_run(tmp_path)
    page = report(tmp_path)
    charts = [v for k, v in page.attributes if k == "aria-label"]
    assert charts[:3] == ["Held-out accuracy", "Training reward", "Success rate"]
    assert "KL" not in charts and "Not measured: kl." in page.text
    assert {"Entropy", "Clipped", "Completion length", "Zero-signal groups", "Speed"} <= set(charts)
    assert "method: grpo  # default" in page.text
    assert "step 000010" in page.text and "step 000030" in page.text and "step 000020" not in page.text
    # step 30: trajectory 3 of each group of four has the one success; of the failures the first is shown
    for text in ("question 0", "answer 3", "answer 0", "correct: 1\nformat: 1", "0.3704"):
        assert text in page.text
    assert "question 5" not in page.text  # four groups are enough


def test_verdict_and_names_stand_first(tmp_path: Path) -> None:
    whole_run(tmp_path)
    lines = ["method: dr_grpo+gspo  # argument", "model: tiny # default", "task: my tasks.jsonl", "seed: 3"]
    (tmp_path / "config.yaml").write_text("\n".join(lines) + "\n")
    actual = Finding(("no_eos",), "critical", "likely", "nothing ends", ("truncated_rate = 1",), (), ("eos ids",))
    write_report(tmp_path, Diagnosis("gxpo", ["metrics.jsonl"], [actual], progress="flat"))
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    text = page.text[page.text.index("dr_grpo+gspo on my tasks.jsonl", 60) :]
    parts = ["dr_grpo+gspo on my tasks.jsonl", "model tiny", "seed 3", "step 30", "nothing ends (likely)",
             "truncated_rate = 1", "Try: eos ids", "flat", "Curves", "Sample rollouts", "Configuration"]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_same_curve_is_drawn_once(tmp_path: Path) -> None:
    MetricsFile(tmp_path / "metrics.jsonl").append({"step": 1, "reward_mean": 0.5, "success_rate": 0.5})
    assert [v for k, v in report(tmp_path).attributes if k == "aria-label"] == ["Success rate", "table"]


def test_summary_figures(tmp_path: Path) -> None:
    whole_run(tmp_path)
    figures = dict(
        summary(MetricsFile(tmp_path / "metrics.jsonl").read(), MetricsFile(tmp_path / "evaluations.jsonl").read())
    )
    assert figures["steps"] == "30"
    assert figures["held-out accuracy, step 0"] == "0.400 (95% interval 0.370 to 0.430)"
    assert figures["held-out accuracy, step 30"] == "0.700 (95% interval 0.670 to 0.730)"
    assert (
        figures["change"] == "+0.300" and figures["held-out tasks"] == "1000" and figures["held-out pass@8"] == "0.875"
    )
    assert figures["tokens generated"] == "30,000" and figures["rollouts unscored"] == "15"
    assert figures["time of all steps"] == "1 min 15 s" and figures["of it sampling"] == "45.0 s"
    assert figures["fingerprint of the weights"] == "123456789"


def test_hostile_text_is_only_text(tmp_path: Path) -> None:
    run = tmp_path / "<b>run & co"
    run.mkdir()
    (run / "config.yaml").write_text(f"model: {HOSTILE}\n")
    MetricsFile(run / "metrics.jsonl").append({"step": 1, "weights_fingerprint": HOSTILE})
    turn = {"action": [1], "action_text": HOSTILE, "finish": "length"}
    write_records(run, 1, [record(0, 1.0, task=HOSTILE, prompt_text=HOSTILE, turns=[turn], rewards={HOSTILE: HOSTILE},
                                  info={"advantage": HOSTILE}),
                           record(1, 0.0, turns=[{"action_text": "\ud800 half a pair"}])])  # fmt: skip
    page = report(run)
    # config.yaml and the model it names, figure, task, prompt, completion, component and its name, advantage
    assert page.text.count("alert(1)") == 9
    assert "half a pair" in page.text and "<b>run & co" in page.text and "[cut]" in page.text


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    page = report(tmp_path)
    assert "No step has ended yet." in page.text and "No rollouts written yet." in page.text
    MetricsFile(tmp_path / "evaluations.jsonl").append({"step": 0, "eval_accuracy": 0.25, "eval_low": None})
    assert "0.250" in report(tmp_path).text
    MetricsFile(tmp_path / "metrics.jsonl").append({"step": 1, "reward_mean": 0.5, "kl": None})
    with open(tmp_path / "metrics.jsonl", "a") as torn:
        torn.write('{"step": 2, "rew')
    assert "Training reward" in [v for k, v in report(tmp_path).attributes if k == "aria-label"]
    write_records(tmp_path, 1, [])
    assert "best and worst rollout of 0 groups" in report(tmp_path).text


def test_odd_records(tmp_path: Path) -> None:
    fork = record(1, None, fork={"of": "t0", "turn": 2, "token": 3}, group="forked")
    two = [{"action": [1], "action_text": "first"}, {"observation": [7, 8], "action": [9]}]
    path = write_records(tmp_path, 5, [{"schema": "gxpo.rollouts/1"}, fork, record(2, 0.5, turns=two, prompt_text=None),
                                       record(9, 0.5, prompt_text="x" * 5000)])  # fmt: skip
    with open(path, "a") as torn:
        torn.write('{"schema": "gxpo')
    page = report(tmp_path)
    for text in ("goes on from turn 2 of t0", "unscored", "first\n[observed] tokens [7, 8]\ntokens [9]", "tokens [5]",
                 "[and 3000 characters]", "1 lines of step-000005.jsonl can't be read"):  # fmt: skip
        assert text in page.text


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"report.html not written"):
        write_report(tmp_path / "nowhere")
