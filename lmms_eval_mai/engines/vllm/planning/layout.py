"""Decides on which GPUs each engine runs, and in which order the possibilities are tried."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TENSOR_PARALLEL = (1, 2, 4, 8)
"""Numbers of GPUs that hold one copy of a model together, tried in this order."""


@dataclass(frozen=True)
class Place:
    """The GPUs on which one engine runs."""

    gpus: tuple[int, ...]
    tensor_parallel: int
    """Number of GPUs that hold one copy of the model together. The other GPUs hold more copies or other layers."""


@dataclass(frozen=True)
class Wish:
    """The user's own arguments for the place of one engine. None: not given."""

    devices: tuple[int, ...] | None = None
    tensor_parallel: int | None = None
    copies: int = 1
    """Product of all other ways to divide an engine: pipeline stages, replicas."""
    heads: int | None = None
    """Attention heads, which tensor parallelism must divide. None: unknown."""


def layouts(wishes: Sequence[Wish], gpu_count: int, turns: bool) -> Iterator[tuple[Place, ...]]:
    """Yield the places of the engines, the best ones first: each model on its own GPUs, then both on the same GPUs.

    `turns`: the engines take turns on the same GPUs (`sleep=true`). Yields nothing if there are too few GPUs.
    """
    sizes = [_sizes(wish, gpu_count) for wish in wishes]
    if not all(sizes):
        return
    if len(wishes) == 1:
        yield from ((_first_free(wishes[0], size, (), gpu_count),) for size in sizes[0])
        return
    if not turns:
        for small in sizes[0]:
            for large in sizes[1]:
                yield from _apart(wishes, (small, large), gpu_count)
    same = [
        size
        for size in TENSOR_PARALLEL
        if all(size in one or wish.tensor_parallel for wish, one in zip(wishes, sizes, strict=True))
    ]
    for size in same:
        yield tuple(
            _first_free(wish, size if wish.tensor_parallel is None else one[0], (), gpu_count)
            for wish, one in zip(wishes, sizes, strict=True)
        )
    if not same:  # the given GPUs divide the models differently
        yield tuple(_first_free(wish, one[0], (), gpu_count) for wish, one in zip(wishes, sizes, strict=True))


def _sizes(wish: Wish, gpu_count: int) -> list[int]:
    """Return the sizes of tensor parallelism that this engine may have on so many GPUs."""
    if wish.tensor_parallel is not None:
        return [wish.tensor_parallel] if wish.tensor_parallel * wish.copies <= gpu_count else []
    if wish.devices is not None:
        return [max(1, len(wish.devices) // wish.copies)]
    return [size for size in TENSOR_PARALLEL if size * wish.copies <= gpu_count and (wish.heads or size) % size == 0]


def _apart(wishes: Sequence[Wish], sizes: tuple[int, int], gpu_count: int) -> Iterator[tuple[Place, ...]]:
    """Yield places without a common GPU, if there are enough GPUs. Given devices stay as they are."""
    places: dict[int, Place] = {}
    for index in sorted(range(2), key=lambda index: wishes[index].devices is None):
        taken = tuple(gpu for place in places.values() for gpu in place.gpus)
        free = gpu_count - len(set(taken))
        if wishes[index].devices is None and sizes[index] * wishes[index].copies > free:
            return
        places[index] = _first_free(wishes[index], sizes[index], taken, gpu_count)
    yield places[0], places[1]


def _first_free(wish: Wish, size: int, taken: tuple[int, ...], gpu_count: int) -> Place:
    if wish.devices is not None:
        return Place(wish.devices, size)
    free = [gpu for gpu in range(gpu_count) if gpu not in taken]
    return Place(tuple(free[: size * wish.copies]), size)
