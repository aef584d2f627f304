"""The `transformers` engine: a model in this process, run by Hugging Face transformers."""
