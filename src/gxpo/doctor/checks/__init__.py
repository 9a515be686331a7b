"""Checks by stage, in the order of diagnosis; importing this package registers them all."""

from gxpo.doctor.checks import around, credit, moved, sampled, scored, tokens, variance, went

__all__ = ["around", "credit", "moved", "sampled", "scored", "tokens", "variance", "went"]
