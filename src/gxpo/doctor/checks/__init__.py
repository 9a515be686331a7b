"""Checks by stage, in the order of diagnosis; importing this package registers them all."""

from gxpo.doctor.checks import credit, moved, sampled, scored, tokens, went

__all__ = ["credit", "moved", "sampled", "scored", "tokens", "went"]
