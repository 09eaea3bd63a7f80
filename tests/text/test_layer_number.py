"""Numbers of a layer print as C expressions of equal value."""

from __future__ import annotations

from smelt.codegen.text.layer_number import LayerNumber

WIDTH, DEPTH = LayerNumber(7, "layer->width"), LayerNumber(5, "layer->depth")


def test_products_and_quotients_are_expressions() -> None:
    texts = {
        "layer->width * layer->depth": WIDTH * DEPTH,
        "layer->width * 3": 3 * WIDTH,
        "layer->width / 4 * 4": WIDTH // 4 * 4,
        "layer->depth * (layer->width / 4)": DEPTH * (WIDTH // 4),
        "layer->width / (layer->depth * 2)": WIDTH // (2 * DEPTH),
        "layer->width": 1 * WIDTH * 1 // 1,
    }
    fields = {"layer->width": "7", "layer->depth": "5", "/": "//"}
    for text, number in texts.items():
        assert f"{number}" == text
        for name, value in fields.items():
            text = text.replace(name, value)
        assert eval(text) == number


def test_other_results_are_literals() -> None:
    assert f"{WIDTH + 1} {WIDTH - DEPTH} {WIDTH % 4}" == "8 2 3"
    assert WIDTH == 7 > DEPTH
    assert list(range(LayerNumber(2, "length"))) == [0, 1]
