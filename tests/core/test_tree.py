"""Trees: stacking, flattening, mixing and similarity against loops; records and tables."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from idiolect.core import tree

K = 4


def draw(seed: int, k: int = K) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 2), "b": (3,), "scale": ()}
    return {n: torch.randn(k, *s, generator=g, dtype=torch.float64) for n, s in shapes.items()}


A, B = draw(0), draw(1)


def row(t: dict[str, Tensor], k: int) -> Tensor:
    return torch.cat([t[n][k].flatten() for n in ("w", "b", "scale")])


# --- leaf by leaf ---


def test_arithmetic() -> None:
    assert torch.equal(tree.add(A, B)["w"], A["w"] + B["w"])
    assert torch.equal(tree.sub(A, B)["b"], A["b"] - B["b"])
    assert torch.equal(tree.mul(A, B)["scale"], A["scale"] * B["scale"])
    assert torch.equal(tree.scale(A, 2.5)["w"], A["w"] * 2.5)
    assert torch.equal(tree.scale(A, torch.tensor(2.5))["w"], A["w"] * 2.5)


def test_scale_and_lerp_by_client() -> None:
    by = torch.tensor([0.0, 1.0, -2.0, 0.5])
    scaled, between = tree.scale(A, by), tree.lerp(A, B, by)
    for k in range(K):
        assert torch.equal(row(scaled, k), row(A, k) * by[k])
        assert torch.allclose(row(between, k), (1 - by[k]) * row(A, k) + by[k] * row(B, k))
    assert torch.allclose(tree.lerp(A, B, 0.25)["w"], 0.75 * A["w"] + 0.25 * B["w"])


def test_where_takes_whole_clients() -> None:
    mask = torch.tensor([True, False, False, True])
    chosen = tree.where(mask, A, B)
    for k in range(K):
        assert torch.equal(row(chosen, k), row(A if mask[k] else B, k))


def test_pick_drop_and_clone() -> None:
    assert list(tree.pick(A, ("b", "w", "nothing"))) == ["b", "w"]
    assert list(tree.drop(A, ("b",))) == ["w", "scale"]
    copy = tree.clone(A)
    copy["w"] += 1
    assert not torch.equal(copy["w"], A["w"])
    assert float(tree.zeros_like(A)["w"].abs().max()) == 0


def test_expand_shares_and_pile_copies() -> None:
    one = tree.client(A, 2)
    many = tree.expand(one, 3)
    assert many["w"].shape == (3, 3, 2)
    assert many["w"].data_ptr() == one["w"].data_ptr()
    again = tree.pile([tree.client(A, k) for k in range(K)])
    assert all(torch.equal(again[n], A[n]) for n in A)


# --- matrices ---


def test_mix_with_a_vector_and_a_matrix() -> None:
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4])
    mixed = tree.mix(weight, A)
    expected = sum(float(w) * A["w"][k] for k, w in enumerate(weight.double()))
    assert mixed["w"].shape == (3, 2)
    assert mixed["scale"].shape == ()
    assert torch.allclose(mixed["w"], expected)
    matrix = torch.rand(2, K, dtype=torch.float64)
    rows = tree.mix(matrix, A)
    for i in range(2):
        expected = sum(matrix[i, k] * row(A, k) for k in range(K))
        assert torch.allclose(row(rows, i), expected)


def test_dot_and_cosine_per_client() -> None:
    for k in range(K):
        a, b = row(A, k), row(B, k)
        assert tree.dot(A, B)[k].item() == pytest.approx(float(a @ b))
        assert tree.cosine(A, B)[k].item() == pytest.approx(float(a @ b / a.norm() / b.norm()))


def test_cosine_where_nothing_moves_is_zero() -> None:
    still = tree.where(torch.tensor([True, False, True, True]), A, tree.zeros_like(A))
    assert tree.cosine(still, B)[1].item() == 0
    assert tree.cosine(B, still)[1].item() == 0
    assert bool(torch.isfinite(tree.cosines(still)).all())


def test_cosine_of_tiny_single_precision_moves() -> None:
    tiny = {n: v.float() * 1e-12 for n, v in A.items()}
    assert torch.allclose(tree.cosine(tiny, tiny), torch.ones(K))


def test_cosines_between_all() -> None:
    c = tree.cosines(A)
    for i in range(K):
        for j in range(K):
            a, b = row(A, i), row(A, j)
            assert c[i, j].item() == pytest.approx(float(a @ b / a.norm() / b.norm()))


def test_cosines_of_tiny_single_precision_moves() -> None:
    tiny = {n: v.float() * 1e-12 for n, v in A.items()}
    assert torch.allclose(tree.cosines(tiny).diagonal(), torch.ones(K))


def test_gram_and_inner() -> None:
    other = draw(6, k=3)
    g = tree.gram(A, other)
    assert g.shape == (K, 3)
    for i in range(K):
        for j in range(3):
            expected = float(row(A, i) @ row(other, j))
            assert g[i, j].item() == pytest.approx(expected)
            one, two = tree.client(A, i), tree.client(other, j)
            assert tree.inner(one, two).item() == pytest.approx(expected)


@pytest.mark.parametrize("shared", [True, False])
def test_every_client_and_its_stack(shared: bool) -> None:
    """The same numbers whether all clients are shown one stack (a GEMM) or hold a copy each."""
    stack = draw(7, k=3)
    stacks = tree.expand(stack, K) if shared else tree.clone(tree.expand(stack, K))
    weight = torch.rand(K, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    blended, products = tree.blend(weight, stacks), tree.products(A, stacks)
    for k in range(K):
        expected = sum(weight[k, m] * row(stack, m) for m in range(3))
        assert torch.allclose(row(blended, k), expected, rtol=0, atol=1e-14)
        for m in range(3):
            assert products[k, m].item() == pytest.approx(float(row(A, k) @ row(stack, m)))


def test_different_stacks() -> None:
    stacks = {n: torch.stack([draw(s)[n] for s in range(3)], 1) for n in A}
    weight = torch.rand(K, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    blended, products = tree.blend(weight, stacks), tree.products(B, stacks)
    for k in range(K):
        rows = [row(draw(s), k) for s in range(3)]
        expected = sum(weight[k, s] * rows[s] for s in range(3))
        assert torch.allclose(row(blended, k), expected, rtol=0, atol=1e-14)
        assert products[k].tolist() == pytest.approx([float(row(B, k) @ r) for r in rows])


def test_beside() -> None:
    like = torch.empty(2, device="meta")
    assert tree.beside([3, 1], like).device.type == "meta"
    assert tree.beside(torch.rand(2), like).device.type == "meta"
    assert tree.beside(range(3), torch.ones(1)).tolist() == [0, 1, 2]


def test_square_distances() -> None:
    other = draw(5, k=3)
    d = tree.square_distances(A, other)
    assert d.shape == (K, 3)
    for i in range(K):
        for j in range(3):
            assert d[i, j].item() == pytest.approx(
                float((row(A, i) - row(other, j)).square().sum())
            )


def test_square_distances_do_not_cancel() -> None:
    """Large models that differ by little, in single precision."""
    base = {"w": torch.full((1, 1000), 100.0)}
    near = {"w": base["w"] + 1e-3}
    step = float((near["w"] - base["w"])[0, 0])
    assert tree.square_distances(base, near).item() == pytest.approx(1000 * step**2, rel=1e-5)
    assert tree.square_distances(base, base).item() == 0


# --- records ---

RECORD = {"model": A, "alpha": torch.arange(K), "deep": {"er": {"x": torch.ones(K, 1)}}, "none": {}}


def same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    assert isinstance(a, dict)
    assert isinstance(b, dict)
    return list(a) == list(b) and all(same(a[k], b[k]) for k in a)


def test_leaves_and_back() -> None:
    flat = tree.leaves(RECORD)
    assert list(flat) == ["model/w", "model/b", "model/scale", "alpha", "deep/er/x", "none/"]
    assert same(tree.nest(flat), RECORD)


def test_empty_records_come_back() -> None:
    for record in ({}, {"a": {}}, {"a": {"b": {}}, "c": {}}):
        assert tree.nest(tree.leaves(record)) == record


def test_row_and_pile() -> None:
    rows = [tree.row(RECORD, k) for k in range(K)]
    assert rows[2]["alpha"].item() == 2
    assert rows[2]["model"]["w"].shape == (3, 2)
    assert same(tree.pile(rows), RECORD)
    assert tree.pile([]) == {}


def test_join() -> None:
    parts = [tree.each(lambda x, s=s: x[s], RECORD) for s in (slice(0, 1), slice(1, 4))]
    assert same(tree.join(parts), RECORD)


def test_bytes() -> None:
    assert tree.nbytes(RECORD) == 8 * K * 10 + 8 * K + 4 * K
    assert tree.nbytes({}) == 0
    assert tree.nbytes({"a": {}}) == 0


def test_square_distances_pair_leaves_by_name() -> None:
    a = {"w": torch.randn(3, 4), "b": torch.randn(3, 2)}
    b = {"b": a["b"].clone(), "w": a["w"].clone()}
    assert torch.equal(tree.square_distances(a, b).diagonal(), torch.zeros(3))


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a")])
def test_a_leaf_cannot_be_a_part_too(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="at once"):
        tree.nest({n: torch.zeros(1) for n in names})
