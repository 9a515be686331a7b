"""Fair comparison of methods: the same tasks, start, evaluation and budget for every arm, over seeds, with intervals."""
