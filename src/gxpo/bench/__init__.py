"""Measurements, as ratios of two ways of doing the same work in one run: `gxpo bench SUITE`."""
