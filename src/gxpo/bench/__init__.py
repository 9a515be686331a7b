"""Benchmarks `gxpo bench SUITE`: each figure is a ratio of two implementations of the same work in one run."""
