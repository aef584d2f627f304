"""Engines that turn every chat into the same input share a renderer, and prepare an image once for both."""

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engines import Running, make_image, prompt

from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.engines.vllm.renderer import Renderer, shared_renderer
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.event_loop import LoopThread


def renderer(checkpoint: Path, **arguments: Any) -> Renderer:
    """Return the renderer of an engine that is not started."""
    config = parse({"mode": "large", "large": str(checkpoint), "large_engine": "vllm", "dtype": "float32", **arguments})
    return shared_renderer(configure(config.large, None).vllm_config, config.large, 1.0)


def edited(file: str, edit: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        edit(content)
        (folder / file).write_text(json.dumps(content))

    return apply


def test_image_is_prepared_once_for_both_models_of_a_pair(vllm: Running, tiny_pair: tuple[Path, Path]) -> None:
    large = renderer(tiny_pair[1])
    assert large is vllm.engine.started.renderer
    # The engine itself keeps no images.
    assert vllm.engine.started.llm.vllm_config.model_config.multimodal_config.mm_processor_cache_gb == 0
    image, cache = make_image("olive", (160, 96)), large._renderer.mm_processor_cache
    vllm.generate(prompt(0, image, "What is it?"))
    before = cache.make_stats()
    rendered = vllm.loop.run(large.render(prompt(0, image, "Is it a dog?\n").messages))
    after = cache.make_stats()
    assert (after.hits - before.hits, after.total - before.total) == (1, 1)
    (sent,) = rendered["mm_kwargs"]["image"]
    assert len(sent.get_data()["pixel_values"]) == sent.get_data()["image_grid_thw"].prod()


def test_clear_caches_empties_the_image_cache(vllm: Running) -> None:
    image, own = make_image("teal", (160, 96)), vllm.engine.started.renderer
    vllm.loop.run(own.render(prompt(0, image, "What is it?").messages))
    vllm.loop.run(vllm.engine.clear_caches())
    cache = own._renderer.mm_processor_cache
    before = cache.make_stats()
    vllm.loop.run(own.render(prompt(0, image, "What is it?").messages))
    after = cache.make_stats()
    assert (after.hits - before.hits, after.total - before.total) == (0, 1)


DIFFERENCES: dict[str, Callable[[Path], None]] = {
    "chat template": lambda folder: (folder / "chat_template.jinja").write_text(
        (folder / "chat_template.jinja").read_text().replace("assistant", "helper")
    ),
    "pixels": edited(
        "processor_config.json", lambda content: content["image_processor"]["size"].update(longest_edge=40_000)
    ),
    "image token": edited("config.json", lambda content: content.update(image_token_id=1)),
    "vision": edited("config.json", lambda content: content["vision_config"].update(temporal_patch_size=1)),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_checkpoints_that_prepare_prompts_differently_share_no_renderer(
    vllm: Running, tiny_pair: tuple[Path, Path], tmp_path: Path, difference: str
) -> None:
    folder = shutil.copytree(tiny_pair[1], tmp_path / "other")
    assert renderer(folder) is vllm.engine.started.renderer  # the folder's name does not matter
    DIFFERENCES[difference](shutil.copytree(folder, tmp_path / "changed"))
    assert renderer(tmp_path / "changed") is not vllm.engine.started.renderer


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_model_len": 512},
        {"dtype": "bfloat16"},
        {"model_impl": "transformers"},
        {"mm_processor_kwargs": '{"max_pixels": 40000}'},
    ],
)
def test_engines_with_different_prompt_arguments_share_no_renderer(
    vllm: Running, tiny_pair: tuple[Path, Path], arguments: dict[str, Any]
) -> None:
    assert renderer(tiny_pair[1], **arguments) is not vllm.engine.started.renderer


def test_renderer_and_its_images_are_freed_with_the_last_engine_that_uses_them(
    tiny_pair: tuple[Path, Path], loop: LoopThread
) -> None:
    first = renderer(tiny_pair[0], max_model_len=1024)
    second = weakref.ref(renderer(tiny_pair[1], max_model_len=1024))
    assert second() is first
    loop.run(first.render(prompt(0, make_image(), "What is it?").messages))
    kept = first._renderer.mm_processor_cache
    assert len(kept._cache) == 1
    del first
    gc.collect()
    assert second() is None and len(kept._cache) == 0
