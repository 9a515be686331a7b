"""Estimators of the log-likelihood of an answer under a masked (diffusion) language model."""
