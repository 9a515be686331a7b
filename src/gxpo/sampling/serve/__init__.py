"""OpenAI-compatible endpoint over a run's policy that records token ids and log-probs of every call."""
