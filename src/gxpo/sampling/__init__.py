"""Sampling: engines, rollouts, and the endpoint through which agents sample."""
