"""Runs for tests of the report's page: two benchmarks, and texts that try to break out."""

from dataclasses import replace
from pathlib import Path

from support.folders import Answers, World
from support.worlds import pope_world

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\ud83d"
"""Half a character at the end, too."""
SHAPES = World(
    "shapes",
    [
        Answers("circle", "circle", "circle", "circle", "circle"),
        Answers("square", "circle", "square", "circle", "circle"),  # harm
        Answers("cross", "circle", "square", "circle", "cross"),  # rescue
        Answers("4", HOSTILE, "4", "4", "4", fields=(("input", HOSTILE),)),
    ],
)


def write_runs(folder: Path, number: int = 60) -> None:
    """Write MAI, Full RT and both models alone on POPE, and MAI on shapes."""
    pope = pope_world(number)
    for place, method in enumerate(("mai", "full_rt", "small", "large")):
        pope.write(folder, method, time=f"20260101_0000{place:02d}")
    SHAPES.write(folder, "mai", time="20260101_000010")
    SHAPES.write(folder, "small", time="20260101_000012")
    other = replace(SHAPES, documents=[replace(one, gold="other") for one in SHAPES.documents])
    other.write(folder, "full_rt", time="20260101_000013")
    hostile = replace(SHAPES, large="org/<img src=x onerror='window.hacked = 1'>")
    hostile.write(folder, "large", time="20260101_000011")
