"""Checks while a run goes on: what is said once, when it stops, what is kept, and that nothing comes out of them."""

from __future__ import annotations

import math

import pytest

from gxpo.doctor.finding import Diagnosis, Finding, Grade, Severity
from gxpo.doctor.live import ROWS, Live, closing, finding_line
from gxpo.doctor.rollouts import Row
from gxpo.doctor.runlog import RunLog


def finding(name: str, severity: Severity = "warning", grade: Grade = "likely", follows: str | None = None) -> Finding:
    return Finding((name,), severity, grade, f"about {name}", ("loss = 1.",), (), ("optim.lr=1e-4",), follows)


class Clock:
    """Advances by what the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def live(findings, **how) -> tuple[Live, list[str], list[RunLog]]:
    lines: list[str] = []
    logs: list[RunLog] = []

    def examine(log: RunLog) -> Diagnosis:
        logs.append(log)
        return Diagnosis(log.source, log.read, list(findings))

    return Live("trl", warn=lines.append, examine=examine, **how), lines, logs


def test_warnings_are_given_once_for_causes_and_not_for_notes():
    actual = [finding("all_wrong"), finding("entropy_collapse", follows="all_wrong"), finding("slow_tail", "note")]
    doctor, lines, _ = live(actual)
    doctor.row(10, {"reward": 0.0})
    assert doctor.check() is doctor.diagnosis and doctor.check() is not None
    assert lines == ["doctor, step 10: about all_wrong (likely: all_wrong); loss = 1; optim.lr=1e-4"]
    actual.append(finding("no_eos", "critical"))
    doctor.check()
    assert [line.split(" (")[0] for line in lines[1:]] == ["doctor, step 10: about no_eos"]
    assert doctor.warned_ids == {"all_wrong", "no_eos"} and not doctor.stop  # nobody asked for it


def test_a_check_whose_diagnosis_is_shown_warns_of_nothing():
    doctor, lines, _ = live([finding("all_wrong", "critical")], stop_on=("critical",))
    doctor.row(1, {"reward": 0.0})
    assert doctor.check(aloud=False) is doctor.diagnosis is not None
    assert lines == [] and doctor.stop


def test_what_others_have_said_is_not_said_again():
    doctor, lines, _ = live([finding("all_wrong")])
    doctor.warned_ids |= {"all_wrong"}
    doctor.row(1, {"reward": 0.0})
    doctor.check()
    assert lines == []


@pytest.mark.parametrize(
    ("severity", "grade", "stops"),
    [("critical", "proved", True), ("critical", "possible", False), ("warning", "proved", False)],
)
def test_stop_on_request(severity, grade, stops):
    doctor, _, _ = live([finding("non_finite", severity, grade)], stop_on=("critical",))
    doctor.row(3, {"loss": math.nan})
    doctor.check()
    assert doctor.stop is stops


def test_rows_become_the_series_that_reading_makes():
    settings = {"learning_rate": 1e-6, "num_generations": 8, "scale_rewards": "none", "unheard": object()}
    doctor, _, logs = live([], settings=settings)
    assert doctor.log().read == []
    row = {"reward": "0.25", "rewards/right/mean": 0.25, "frac_reward_zero_std": 0.5, "odd": 3.0, "text": "words"}
    doctor.row(1, row)
    doctor.row(2, {**row, "reward": 0.75, "grad_norm": None}, {"weights_moved": 0.5})
    doctor.row(2, {"eval_reward": 0.9})
    doctor.check()
    (log,) = logs
    assert log.values("reward").tolist() == [0.25, 0.75] and log.steps("reward").tolist() == [1, 2]
    assert log.values("component/right").tolist() == [0.25, 0.25] and log.values("zero_signal").tolist() == [0.5, 0.5]
    assert len(log.series["grad_norm"]) == 1 and math.isnan(log.series["grad_norm"].values[0])
    assert log.values("weights_moved").tolist() == [0.5] and log.values("eval/reward").tolist() == [0.9]
    assert log.raw["odd"].values.tolist() == [3.0, 3.0]
    assert log.config["lr"] == 1e-6 and log.config["group_size"] == 8 and log.config["scale"] == "none"
    assert log.read == ["the run so far, to step 2"] and log.rollouts is None


def rollouts(step: int, n: int = 4) -> list[Row]:
    return [Row(step, f"p{i // 2}", f"c{i}", float(i), group=i // 2) for i in range(n)]


def test_rollouts_are_kept_in_groups_and_bounds():
    doctor, _, logs = live([])
    for step in range(1, 41):
        doctor.rollouts(rollouts(step, 200), of=1000)
    doctor.check()
    rollouts_of_log = logs[0].rollouts
    assert rollouts_of_log is not None and len(rollouts_of_log) <= 4_000 and rollouts_of_log.total == 40_000
    assert {1, 40} <= set(rollouts_of_log.step.tolist()) and len(set(rollouts_of_log.step.tolist())) >= 10
    assert rollouts_of_log.group[:4].tolist() == [0, 0, 1, 1] and rollouts_of_log.prompt[:3] == ["p0", "p0", "p1"]


def test_rows_are_thinned_in_the_middle():
    doctor, _, _ = live([])
    for step in range(3 * ROWS):
        doctor.row(step, {"reward": float(step)})
    steps = doctor.log().steps("reward").tolist()
    assert len(steps) <= ROWS and steps[:200] == list(range(200))
    assert steps[-1000:] == list(range(3 * ROWS - 1000, 3 * ROWS)) and steps == sorted(steps)


def test_rollouts_may_be_read_for_a_check():
    doctor, _, logs = live([])
    doctor.row(1, {"reward": 0.0})
    asked_last_steps = []
    doctor.check(lambda log: asked_last_steps.append(log.last_step))
    assert asked_last_steps == [1] and logs[0].rollouts is None


def test_when_a_check_is_due():
    clock = Clock()
    doctor, _, _ = live([], every=5, clock=clock)
    assert [s for s in range(7) if doctor.due(s)] == [5, 6]  # steps 3, 6, 9 may be all that is logged
    doctor.row(6, {"reward": 0.0})
    doctor.check()
    assert [s for s in range(6, 12) if doctor.due(s)] == [10, 11]
    clock.now, doctor.check_seconds = 100.0, 1.5  # more than a hundredth
    assert not doctor.due(10)
    clock.now = 150.0
    assert doctor.due(10)
    assert not live([], every=0)[0].due(10)
    stopping, _, _ = live([], stop_on=("critical",), clock=clock)
    stopping.check_seconds = 1e9  # or where a run stops would depend on the clock
    assert stopping.due(10)
    with pytest.raises(ValueError, match="every=-1"):
        Live("trl", every=-1)


def test_time_of_checks_is_counted():
    clock = Clock()

    def slow(log: RunLog) -> Diagnosis:
        clock.now += 2.0
        return Diagnosis("trl", ["x"])

    doctor = Live("trl", examine=slow, clock=clock)
    doctor.check()
    assert doctor.check_seconds == 2.0


def test_what_goes_wrong_inside_is_one_warning():
    def broken(log: RunLog) -> Diagnosis:
        raise ZeroDivisionError("nothing there")

    lines: list[str] = []
    doctor = Live("gxpo", warn=lines.append, examine=broken)
    doctor.row(1, {"reward_mean": 0.5})
    assert doctor.check() is None and doctor.check() is None and not doctor.due(10)
    doctor.row(2, {"reward_mean": 0.5}, {"no such name": 1.0})
    assert lines == ["doctor: no more checks in this run: ZeroDivisionError: nothing there"]
    lines.clear()
    other = Live("gxpo", warn=lines.append)
    other.row(2, {"reward_mean": 0.5}, {"no such name": 1.0})
    assert lines == ["doctor: no more checks in this run: ValueError: not among series.NAMES: ['no such name']"]


def test_without_a_warn_it_is_a_python_warning():
    doctor = Live("trl", examine=lambda log: Diagnosis("trl", ["x"], [finding("no_eos")]))
    with pytest.warns(UserWarning, match=r"doctor, step 0: about no_eos \(likely: no_eos\)"):
        doctor.check()


def test_a_finding_in_a_line():
    several = Finding(("lr_too_low", "weights_do_not_move"), "critical", "possible", "Nothing moves")
    assert finding_line(several) == "doctor: Nothing moves (possible: lr_too_low or weights_do_not_move)"


def test_the_lines_a_run_ends_with():
    healthy = Diagnosis("gxpo", ["metrics.jsonl"], progress="reward gains 0.2", points=10)
    assert closing(healthy) == ["doctor: no sickness found", "  reward gains 0.2"]
    sick = Diagnosis("gxpo", ["metrics.jsonl"], [finding("all_wrong", "critical", "proved")])
    assert closing(sick, "runs/one") == [
        "doctor: about all_wrong (proved)",
        "  loss = 1.",
        "  try: optim.lr=1e-4",
        "  more: gxpo doctor runs/one",
    ]
