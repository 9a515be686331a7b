"""An OpenAI-compatible endpoint over a run's policy, which records ids and log-probs of every call."""
