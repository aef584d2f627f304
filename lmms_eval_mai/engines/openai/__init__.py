"""The `openai` engine: a model behind OpenAI-compatible endpoints on this or other machines. It starts no servers."""
