"""Rules that `rollout.check` names in tests, and cases that they are tried on."""

from gxpo.sampling.rollouts.between import Prediction

CASES = [(">", "L", True), (">", "U", False)]
WRONG = [*CASES, (">", "R", False)]


def no_up(observation, action):
    """Refuse to go up."""
    return "not up" if action.strip() in ("U", "up") else None


def fails(observation, action):
    raise RuntimeError("no rule\nfor this")


def toy_world(observation, action):
    """A made-up world: an episode ends with its first action, half of which succeed."""
    return Prediction(f"{observation}{len(action)}", True, sum(map(ord, action)) % 2 == 0)
