"""Diagnosis of training runs from what they left: `read` a directory, `diagnose` it. Imports no torch."""

from gxpo.doctor.diagnosis import diagnose
from gxpo.doctor.finding import Diagnosis, Finding, Unchecked
from gxpo.doctor.reading import read
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Series

__all__ = ["Diagnosis", "Finding", "Rollouts", "RunLog", "Series", "Unchecked", "diagnose", "read"]
