"""The `vllm` engine: one model in vLLM, in a process that exists for the whole run.

This package uses vLLM's public interface: `AsyncEngineArgs`, `AsyncLLM` and its renderer.
"""
