"""The figure of README.md: the path of a sample through the cascade, with the exits measured on the demo pair.

The numbers come from docs/demo-pair.json. There is one file per colour scheme of GitHub: docs/cascade-light.svg and
docs/cascade-dark.svg. cog writes the drawing between the two markers of each file.
"""

from dataclasses import dataclass
from typing import Any

import demo_tables

FONT = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"

COLOURS = {
    "light": {
        "plain": "#ffffff",
        "plain_edge": "#59636e",
        "text": "#1f2328",
        "soft": "#59636e",
        "small": "#ddf4ff",
        "small_edge": "#0969da",
        "large": "#fff1e5",
        "large_edge": "#bc4c00",
        "exit": "#dafbe1",
        "exit_edge": "#1a7f37",
    },
    "dark": {
        "plain": "#0d1117",
        "plain_edge": "#9198a1",
        "text": "#f0f6fc",
        "soft": "#9198a1",
        "small": "#0c2d6b",
        "small_edge": "#58a6ff",
        "large": "#5a1e02",
        "large_edge": "#f0883e",
        "exit": "#033a16",
        "exit_edge": "#3fb950",
    },
}


WIDTH, HEIGHT = 880, 346
STEPS = {
    "1. Short answers": 128,
    "2. Thinking": 400,
    "3. Transfer": 672,
}
"""Title and left edge of each step."""
STEP, BOX = 200, 54
"""Width of a step and height of a box."""
SMALL_Y, MIDDLE_Y, LARGE_Y, EXIT_Y = 52, 84, 116, 228
"""Upper edges of the boxes."""
FLOW_Y = MIDDLE_Y + BOX / 2


def draw(scheme: str) -> None:
    """Print the drawing in the colours of `scheme`: `light` or `dark`."""
    figures = demo_tables.load()
    drawing = Drawing(COLOURS[scheme], [])
    drawing.background()
    _draw_models(drawing)
    _draw_exits(drawing, figures["samples"], demo_tables.exits(figures))
    _draw_summary(drawing, figures)
    print("\n".join(drawing.parts))


def _draw_models(drawing: "Drawing") -> None:
    first, second, third = STEPS.values()
    for title, left in STEPS.items():
        drawing.text(left + STEP / 2, 32, title, 15, "bold")
    drawing.box(4, MIDDLE_Y, 88, "Image and", "question", "plain")
    drawing.box(first, SMALL_Y, STEP, "Small model", "answers directly (S)", "small")
    drawing.box(first, LARGE_Y, STEP, "Large model", "answers directly (S)", "large")
    drawing.box(second, MIDDLE_Y, STEP, "Small model", "thinks, then answers (R)", "small")
    drawing.box(third, MIDDLE_Y, STEP, "Large model", "reads the thinking, answers", "large")


def _draw_exits(drawing: "Drawing", documents: int, exits: dict[str, int]) -> None:
    first, second, third = STEPS.values()
    thinking = documents - exits["agree_short"]
    drawing.arrow(92, FLOW_Y, first, FLOW_Y)
    for left, right, count in ((first, second, thinking), (second, third, exits["transfer"])):
        drawing.arrow(left + STEP, FLOW_Y, right, FLOW_Y)
        drawing.text((left + STEP + right) / 2 - 2, FLOW_Y - 8, "differ", 13, soft=True)
        drawing.text((left + STEP + right) / 2 - 2, FLOW_Y + 18, f"{count:,}", 13, soft=True)
    causes = (("both answers", "agree"), ("agrees with the large", "model's short answer"), ("always", ""))
    for (name, count), left, cause in zip(exits.items(), STEPS.values(), causes, strict=True):
        below = LARGE_Y if left == first else MIDDLE_Y
        drawing.arrow(left + 40, below + BOX, left + 40, EXIT_Y)
        for line, y in zip(cause, (192, 209), strict=True):
            drawing.text(left + 50, y, line, 13, soft=True, anchor="start")
        share = f"{count:,} of {documents:,} ({count / documents:.1%})"
        drawing.box(left, EXIT_Y, STEP, f"exit: {name}", share, "exit")


def _draw_summary(drawing: "Drawing", figures: dict[str, Any]) -> None:
    mai, large = demo_tables.tokens(figures, "MAI"), demo_tables.tokens(figures, "large R")
    lines = (
        f"Output tokens per question: {mai['small']:.1f} by the small model and {mai['large']:.1f} by the large "
        f"model. The large model alone with prompt R: {large['large']:.1f}.",
        f"Measured with the demo pair on {figures['samples']:,} questions: a demonstration, not a benchmark result.",
    )
    for line, y in zip(lines, (310, 332), strict=True):
        drawing.text(WIDTH / 2, y, line, 13, soft=True)


@dataclass
class Drawing:
    """The elements of an SVG file, in the colours of one scheme."""

    colours: dict[str, str]
    parts: list[str]

    def background(self) -> None:
        """Fill the whole figure, and define the arrows' head."""
        head = f'<path d="M0 0 8 4 0 8z" fill="{self.colours["soft"]}"/>'
        self.parts += [
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{self.colours["plain"]}"/>',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto">{head}</marker></defs>',
        ]

    def box(self, x: float, y: float, width: float, first: str, second: str, colour: str) -> None:
        """Draw a box with two lines of text."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{BOX}" rx="8" fill="{self.colours[colour]}" '
            f'stroke="{self.colours[colour + "_edge"]}" stroke-width="1.5"/>'
        )
        self.text(x + width / 2, y + 23, first, 14, "normal" if colour == "plain" else "bold")
        self.text(x + width / 2, y + 42, second, 14 if colour == "plain" else 13)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int,
        weight: str = "normal",
        soft: bool = False,
        anchor: str = "middle",
    ) -> None:
        """Write one line."""
        colour = self.colours["soft" if soft else "text"]
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-family="{FONT}" font-size="{size}" font-weight="{weight}" '
            f'text-anchor="{anchor}" fill="{colour}">{text}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw an arrow that ends at (x2, y2)."""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{self.colours["soft"]}" '
            'stroke-width="1.5" marker-end="url(#head)"/>'
        )
