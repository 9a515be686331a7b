"""Fair comparison of methods: equal tasks, start, evaluation and budget for every arm, over seeds, with intervals."""
