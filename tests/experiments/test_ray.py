"""The files of Ray Serve: the arguments of the cascade in them, and the addresses of its models."""

from pathlib import Path

import yaml

from lmms_eval_mai import parse

ROOT = Path(__file__).resolve().parents[2]


def test_the_cascade_of_ray_serve_calls_the_models_that_are_served() -> None:
    ray = yaml.safe_load((ROOT / "experiments" / "ray" / "demo_pair.yaml").read_text())
    models, cascade = ray["applications"]
    config = parse({"store": "off", **cascade["args"]})
    port = ray["http_options"]["port"]
    for engine, served in zip(config.engines(), models["args"]["llm_configs"], strict=True):
        loading = served["model_loading_config"]
        assert engine.model == f"http://127.0.0.1:{port}{models['route_prefix']}/v1"
        assert engine.arguments["model"] == loading["model_id"]
        assert (ROOT / loading["model_source"] / "config.json").exists()
