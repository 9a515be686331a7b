"""The loop, its checkpoints, metrics and report."""
