"""The server of `lmms-eval-mai serve` as an application of Ray Serve. `demo_pair.yaml` uses it."""

import time
from typing import Any

from ray import serve
from ray.serve import Application
from starlette.applications import Starlette

START_S = 1800
"""Seconds to wait for the models. Until they are deployed, Ray answers with an error or not at all, and it gives an
application up after a few failed starts."""
PAUSE_S = 5


def app(model_arguments: dict[str, Any]) -> Application:
    """Return the cascade with these model arguments. The models must be given as addresses."""

    def build() -> Starlette:
        from lmms_eval_mai import EngineStartError, parse
        from lmms_eval_mai.serve import Settings
        from lmms_eval_mai.serve.app import App
        from lmms_eval_mai.serve.service import Service

        deadline = time.monotonic() + START_S
        while True:
            service = Service(parse({"store": "off", **model_arguments}), {}, Settings(model_name="mai_cascade"))
            try:
                service.start()
                break
            except EngineStartError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S)
        return App(service).asgi

    deployment = serve.deployment(
        serve.ingress(build)(),
        name="cascade",
        num_replicas=2,
        max_replicas_per_node=1,
        max_ongoing_requests=512,
        ray_actor_options={"num_cpus": 0.1},
    )
    return deployment.bind()
