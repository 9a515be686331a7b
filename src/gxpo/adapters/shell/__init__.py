"""Abstract reading of bash scripts: their syntax, their words, and the commands that they would run."""
