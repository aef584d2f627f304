"""The files in `deploy/`: their schema, the arguments of the cascade in them, and the names of its models' services."""

import argparse
import json
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from lmms_eval_mai.cli import serve
from lmms_eval_mai.cli.command_line import values_of
from lmms_eval_mai.run.config import Config, parse

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "mai-cascade.yaml").read_text()))
RAY = yaml.safe_load((DEPLOY / "ray" / "demo_pair.yaml").read_text())


def config_of(arguments: list[str]) -> Config:
    """Return the configuration of `lmms-eval-mai serve` with these arguments."""
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    given = parser.parse_args(arguments)
    return parse({"journal": "off", **values_of("--model_args", given.model_args)})


def addresses(config: Config) -> list[tuple[str | None, int | None]]:
    return [(urlsplit(engine.model).hostname, urlsplit(engine.model).port) for engine in config.engines()]


def kubernetes(kind: str) -> dict[str, Any]:
    return {resource["metadata"]["name"]: resource for resource in KUBERNETES if resource["kind"] == kind}


def test_the_cascade_of_compose_calls_the_services_of_the_models() -> None:
    services = COMPOSE["services"]
    assert addresses(config_of(services["cascade"]["command"])) == [("small", 8000), ("large", 8000)]
    assert set(services["cascade"]["depends_on"]) == {"small", "large"} == set(services) - {"cascade"}


def test_the_cascade_of_kubernetes_calls_the_services_of_the_models() -> None:
    (container,) = kubernetes("Deployment")["cascade"]["spec"]["template"]["spec"]["containers"]
    services = kubernetes("Service")
    for name, port in addresses(config_of(container["args"])):
        assert name is not None and [entry["port"] for entry in services[name]["spec"]["ports"]] == [port]


@pytest.mark.parametrize("name", ["small", "large", "cascade"])
def test_a_service_of_kubernetes_selects_the_pods_of_its_deployment_by_a_port_that_they_have(name: str) -> None:
    service, deployment = kubernetes("Service")[name]["spec"], kubernetes("Deployment")[name]["spec"]
    pod = deployment["template"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    assert deployment["selector"]["matchLabels"] == service["selector"]
    (container,) = pod["spec"]["containers"]
    assert service["ports"][0]["targetPort"] in [port["name"] for port in container["ports"]]
    keys = kubernetes("Secret")["mai-cascade"]["stringData"]
    assert all(variable["valueFrom"]["secretKeyRef"]["key"] in keys for variable in container["env"])


def test_the_cascade_of_ray_serve_calls_the_models_that_are_served() -> None:
    models, cascade = RAY["applications"]
    config = parse({"journal": "off", **cascade["args"]})
    port = RAY["http_options"]["port"]
    for engine, served in zip(config.engines(), models["args"]["llm_configs"], strict=True):
        loading = served["model_loading_config"]
        assert engine.model == f"http://127.0.0.1:{port}{models['route_prefix']}/v1"
        assert engine.arguments["model"] == loading["model_id"]
        assert (DEPLOY.parent / loading["model_source"] / "config.json").exists()


def test_the_compose_file_follows_the_compose_specification() -> None:
    vendor = pytest.importorskip("check_jsonschema.builtin_schemas.vendor")
    schema = json.loads((resources.files(vendor) / "compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)
