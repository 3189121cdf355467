"""Reading figures in tests."""

import re


def texts(path):
    """The texts of an SVG file."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))
