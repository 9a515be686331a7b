"""Who samples tokens. Engines are imported from their own files: `gxpo.engines.torch.TorchEngine`."""
