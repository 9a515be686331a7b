"""Models: the decoder, chat templates, the embedded tiny models, tokenizers and processors."""
