"""Advantages, weights, objectives, signals and segments: computation on a forest, below models and sampling."""
