"""Inference engines: sample tokens. Import them from their files: `gxpo.sampling.engines.torch.TorchEngine`."""
