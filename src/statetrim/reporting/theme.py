"""Colours of the page, in its light and dark scheme, and of charts."""

COLOURS = {
    "ground": ("#ffffff", "#12171d"),
    "panel": ("#f4f6f8", "#1b222b"),
    "ink": ("#1b2430", "#e6eaf0"),
    "faint": ("#55606e", "#a3adba"),
    "line": ("#d5dbe2", "#35404d"),
    "shadow": ("#7d8794", "#000000"),
    "accent": ("#0b62a8", "#6db6f2"),
    "good": ("#e4f4ea", "#13301f"),
    "good-edge": ("#1a7f4b", "#4fc985"),
    "fair": ("#fff4dd", "#2e2612"),
    "fair-edge": ("#b27300", "#d9a03a"),
    "bad": ("#fdeae8", "#3a1a18"),
    "bad-edge": ("#b3261e", "#f2877e"),
    "unknown": ("#eef1f4", "#232b35"),
    "unknown-edge": ("#6b7280", "#9aa4b2"),
    "series-0": ("#0b62a8", "#6db6f2"),
    "series-1": ("#b34700", "#f29b5c"),
    "series-2": ("#00785a", "#4fc9a5"),
    "series-3": ("#9a3d78", "#dd8fbe"),
    "series-4": ("#8a6100", "#e0b84f"),
    "series-5": ("#5b6b00", "#b9c95c"),
    "series-6": ("#6b7280", "#9aa4b2"),
}
"""Name -> its colour in the light and in the dark scheme."""
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
DARK = {name: dark for name, (_, dark) in COLOURS.items()}
SERIES = tuple(name for name in COLOURS if name.startswith("series-"))
_DASHES = ((), (7, 3), (2, 3), (8, 3, 2, 3), (12, 3), (4, 4), (9, 3, 2, 3, 2, 3))
DASHES = {name: (0, dash) for name, dash in zip(SERIES, _DASHES, strict=True) if dash}
"""Colour of a line -> its dashes, in points; lines without are solid."""
