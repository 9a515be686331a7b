"""The page of a diagnosis: verdict first, consequences under their cause, quoted curves, all of it escaped."""

from __future__ import annotations

import numpy as np

from gxpo.doctor.finding import Diagnosis, Finding, Unchecked
from gxpo.doctor.html import html
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Series

HOSTILE = "<script>alert(1)</script>"


def log() -> RunLog:
    steps = np.arange(1.0, 6.0)
    run = RunLog(source="trl", read=["trainer_state.json"])
    run.series = {
        "reward": Series(steps, np.linspace(-1, 3, 5), "reward"),
        "truncated": Series(steps, np.full(5, 0.9), "completions/clipped_ratio"),
        "grad_norm": Series(steps, steps, "grad_norm"),
    }
    return run


def diagnosis() -> Diagnosis:
    cause = Finding(
        ("truncation",),
        "critical",
        "proved",
        "all completions are cut",
        ("completions/clipped_ratio 0.9",),
        ({"where": "a:1", "prompt": HOSTILE, "completion": "x" * 3000, "score": 0.25},),
        ("max_completion_length=512",),
    )
    then = Finding(("all_wrong",), "warning", "likely", "no answer is right", follows_from="truncation")
    return Diagnosis("trl", ["trainer_state.json"], [cause, then], [Unchecked("kl", "no KL", "beta=1e-3")], "flat")


def test_a_sick_run():
    page = html(diagnosis(), log())
    assert "all completions are cut (proved); in consequence no answer is right" in page
    order = ["all completions are cut (proved)", "Findings", "1 consequence", "no answer is right", "Quoted", "Not che"]
    places = [page.index(part) if part != order[3] else page.rindex(part) for part in order]
    assert places == sorted(places)
    assert HOSTILE not in page and "&lt;script&gt;alert(1)" in page and "[and 1000 characters]" in page
    assert 'aria-label="completions/clipped_ratio"' in page and 'aria-label="reward"' in page
    assert 'aria-label="grad_norm"' not in page  # nothing quotes it
    assert "Try: max_completion_length=512" in page and "beta=1e-3" in page and "http-equiv" in page


def test_a_healthy_run_and_nothing_read():
    page = html(Diagnosis("trl", ["x"], progress="gains", points=10), log())
    assert 'class="verdict healthy"' in page and "Findings" not in page and "gains" in page
    unclear = html(Diagnosis("trl", ["x"], advice=["logging_steps=1"]), log())
    assert "no verdict" in unclear and "logging_steps=1" in unclear and "healthy" not in unclear.split("<body")[-1]
    empty = html(Diagnosis("unknown", [], notes=["no file could be read"]), RunLog())
    assert "nothing could be read" in empty and "no file could be read" in empty
