"""Generated documents are up to date."""

from smelt.cli.show import operators as show
from tests.support.shared import ROOT


def test_operator_table_is_up_to_date() -> None:
    page = (ROOT / "docs/operators.md").read_text(encoding="utf-8")
    expected = show.support_page(show.imported(), show.served())
    assert page == expected, "run: smelt ops --markdown > docs/operators.md"
