"""How full the state is."""

from collections.abc import Iterator

from ...artifacts.analysis import Analysis
from ...maths.formatting import percent
from ..charts import Point, Series, heat_map, line_chart
from ..document import Block, Picture, Table, Text
from ..findings import Findings
from .wording import missing, thinned


def ranks(found: Findings) -> Iterator[Block]:
    analysis = found.analysis
    if analysis is None:
        yield from missing(
            "The state's rank was not looked at.",
            "statetrim analyze SMALL --baseline MODEL --text text.jsonl --tokens 16k "
            "-o analysis.json",
        )
        return
    parts = {"before": analysis.baseline} if analysis.baseline else {}
    looked: dict[str, Analysis] = {**parts, "after" if parts else "this model": analysis}
    means = {name: float(part.mean_utilization.nanmean()) for name, part in looked.items()}
    words = ", ".join(
        f"{name} {100 * mean:.1f}% of {looked[name].widest}" for name, mean in means.items()
    )
    yield Text(
        f"A state of d keys could have rank d; its effective rank says how many directions it "
        f"really uses. Mean use: {words}. A narrower state reaches a higher share with less in it."
    )
    curves = [
        Series(
            f"{name} (largest rank {part.widest})",
            thinned(
                [
                    Point(x, y)
                    for x, y in zip(part.positions.tolist(), part.curve.tolist(), strict=True)
                ]
            ),
        )
        for name, part in looked.items()
    ]
    yield Picture(
        line_chart(
            curves,
            "Share of the largest rank in use, by token",
            x="token",
            y="rank in use",
            show_y=percent,
            from_zero=True,
        ),
        "Share of the largest possible rank in use after each token; mean over layers and heads.",
    )
    fullest = int(analysis.mean_utilization.nan_to_num().argmax())
    row, head = divmod(fullest, analysis.geometry.num_v_heads)
    layer = list(analysis.layers)[row]
    spectra = [
        Series(name, [Point(n, y) for n, y in enumerate(_spectrum(part, layer, head), start=1)])
        for name, part in looked.items()
        if layer in part.layers and head < part.geometry.num_v_heads
    ]
    chart = line_chart(
        spectra,
        f"Singular values of the state of layer {layer}, head {head}",
        x="singular value, from the largest",
        y="mean over tokens",
        log=True,
    )
    if chart:
        yield Picture(
            chart,
            f"Singular values of the fullest head (layer {layer}, head {head}): a steep fall means "
            f"that few directions carry the memory.",
        )
    top = max(float(part.mean_utilization.nan_to_num().max()) for part in looked.values())
    for name, part in looked.items():
        chart = heat_map(
            part.mean_utilization,
            list(map(str, part.layers)),
            f"Rank in use {name}, by layer and head, in percent",
            top,
        )
        if chart:
            yield Picture(chart, f"Rank in use {name}, in %: a row a layer, a column a head.")
    yield Table(
        ("layer", *looked, "κ keys", "κ queries"),
        [
            (
                str(layer),
                *(percent(float(part.mean_utilization[row].nanmean())) for part in looked.values()),
                f"{float(one.key_condition.nanmedian()):,.0f}",
                f"{float(one.query_condition.nanmedian()):,.0f}",
            )
            for row, (layer, one) in enumerate(analysis.layers.items())
            if all(row < len(part.layers) for part in looked.values())
        ],
        caption="Rank in use by layer; κ is the condition number, median head",
        folded=True,
    )


def _spectrum(part: Analysis, layer: int, head: int) -> list[float]:
    values: list[float] = part.layers[layer].spectrum[head].tolist()
    return values
