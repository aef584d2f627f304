"""The fields of a chat request that the server ignores, for docs/serve.md."""

import textwrap

from lmms_eval_mai.serve.chat_request import IGNORED


def print_fields() -> None:
    """Print the fields that are ignored, wrapped at 120 characters."""
    options = ["image_url.detail", "stream_options.continuous_usage_stats", "stream_options.include_obfuscation"]
    text = f"Ignored: {', '.join(f'`{name}`' for name in sorted([*IGNORED, *options]))}."
    print(textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False))
