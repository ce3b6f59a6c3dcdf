"""The picture of a split can be read."""

from idiolect.data import split_picture


def test_numbers_in_dark_cells_are_white() -> None:
    page = split_picture._page(["a"], ["x", "y"], [[10, 5]])
    assert '1.000);color:white">10<' in page and '0.500)">5<' in page


def test_cut_names_end_in_dots() -> None:
    assert split_picture._ascii("a long na…") == "a long na..."
