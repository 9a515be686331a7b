"""`diagnose`: every check on a run's log, causes first, consequences under them."""

from __future__ import annotations

from gxpo.doctor.finding import Diagnosis
from gxpo.doctor.runlog import RunLog


def diagnose(log: RunLog) -> Diagnosis:
    """Look for every sickness that the log allows to be seen."""
    return Diagnosis(log.source, list(log.read), notes=list(log.notes))
