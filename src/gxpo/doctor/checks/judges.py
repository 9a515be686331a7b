"""Judges: a policy that pleases the judge that pays it, while others and the labels see its answers get worse."""

from __future__ import annotations

from gxpo.doctor.case import Case
from gxpo.doctor.finding import Finding
from gxpo.doctor.sickness import found, sickness

LEAST = 12  # steps below which a direction is not judged
PAID, EXPLOITED = "component/judge", "component/exploitation"


@sickness(
    "judge_hacked",
    5,
    "the policy exploits its judge: its score rises, held-out judges' or verdicts fall",
    "score of the training judge rises while the held-out panel's, the verdicts or held-out accuracy fall; or they do "
    "not rise and the share of credited answers that the panel rejects does",
    needs=(PAID,),
)
def judge_hacked(case: Case) -> Finding | None:
    if case.n < LEAST or not case.rises(PAID):
        return None
    others = [n for n in ("component/held_out", "success") if case.has(n) and not case.constant(n)]
    fall = [n for n in others if case.falls(n)]
    better = [n for n in others if case.rises(n)]
    if not fall and case.held_out == "eval/accuracy" and case.held_out_gain < 0:
        fall = ["eval/accuracy"]
    exploited = case.rises(EXPLOITED)
    if not fall and not (exploited and others and not better):
        return None
    if "success" in better and "component/held_out" not in fall:
        return None  # by the labels it gets better
    said = [case.quote(PAID), *(case.quote(n) for n in others), case.quote(EXPLOITED)]
    if case.held_out is not None:
        said.append(case.quote(case.held_out))
    return found(
        "judge_hacked",
        "critical" if fall else "warning",
        "likely" if fall else "possible",
        "the judge that is paid for likes the answers more and more, and those who are not asked by the reward do not",
        *said,
    )
