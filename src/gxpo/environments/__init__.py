"""Tasks, environments and rewards: the questions of a run, and how answers are scored."""
