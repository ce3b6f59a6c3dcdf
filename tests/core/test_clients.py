"""Tables of clients' state: the rows are the same wherever they live."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idiolect.core import clients, storage, tree
from idiolect.core.clients import Table
from idiolect.core.tree import Record
from idiolect.errors import UserError
from tests.conftest import rows

CPU = torch.device("cpu")
PLACES = ("device", "host", "disk")


def settled(default: Any, place: Any, most: int | None = None) -> Table:
    table = Table(default)
    table.settle(CPU, place, most)
    return table


def test_rows_nobody_wrote_are_the_default() -> None:
    table = Table({"m": {"w": torch.arange(3.0)}})
    assert table[[5, 1]]["m"]["w"].tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_default_can_be_made_when_needed() -> None:
    asked: list[list[int]] = []

    def fresh(ids: list[int]) -> dict[str, Tensor]:
        asked.append(ids)
        return {"id": torch.tensor(ids)}

    table = Table(fresh)
    assert table[[3, 1]]["id"].tolist() == [3, 1]
    assert table[[1, 2, 3]]["id"].tolist() == [1, 2, 3]
    assert asked == [[3, 1], [2]]


def test_rows_are_written_by_client_and_kept_apart() -> None:
    table = Table({"w": torch.zeros(2)})
    given = {"w": torch.tensor([[1.0, 1.0], [2.0, 2.0]])}
    table[[7, 4]] = given
    given["w"] += 10
    read = table[[4, 7, 0]]
    assert read["w"].tolist() == [[2, 2], [1, 1], [0, 0]]
    read["w"] += 10
    assert table[[4]]["w"].tolist() == [[2, 2]]


def test_a_table_holds_no_graph() -> None:
    table = Table({})
    table[[0]] = {"w": torch.ones(1, 2, requires_grad=True) * 2}
    assert not rows(table)[0]["w"].requires_grad


def rows_of(ids: list[int]) -> Record:
    """Rows that say whose they are, in several types."""
    own = torch.tensor(ids)
    return {"m": {"w": own[:, None] * torch.ones(3, dtype=torch.float64), "n": own}, "rest": {}}


@pytest.mark.parametrize("place", PLACES)
def test_rows_come_back_wherever_they_live(place: str) -> None:
    table = settled(rows_of, place)
    for ids in ([3, 1], [900, 2, 7], list(range(40))):  # grows several times
        table[ids] = rows_of(ids)
    read = table[[7, 900, 7, 0]]
    assert read["m"]["w"][:, 0].tolist() == read["m"]["n"].tolist() == [7, 900, 7, 0]
    assert read["m"]["w"].dtype == torch.float64 and read["rest"] == {}
    table[[7]] = tree.each(lambda x: -x, rows_of([7]))
    assert table[[7, 8]]["m"]["n"].tolist() == [-7, 8]
    assert sorted(i for i, _ in table.items()) == [*range(40), 900]


@pytest.mark.parametrize("place", ["host", "disk"])
def test_writes_under_way_are_seen(place: str, monkeypatch: Any) -> None:
    """As with a GPU, whose rows reach their slots after the write has returned."""
    monkeypatch.setattr(storage.RowStore, "_away", True)
    table = settled(rows_of, place)
    table[[0, 1, 2]] = rows_of([0, 1, 2])
    assert table._stores[0]._late is not None
    table[[1, 5]] = rows_of([11, 15])  # while the first is under way, and the table grows
    assert table[[5, 2, 1, 0]]["m"]["n"].tolist() == [15, 2, 11, 0]
    one = tree.each(lambda x: x.expand(4, *x.shape[1:]), rows_of([7]))
    table[[0, 1, 2, 3]] = one  # the same row for all travels once
    assert len(table._stores[0]._late[2]["m/n"]) == 1  # type: ignore[index]
    assert {i: int(row["m"]["n"]) for i, row in table.items()} == {0: 7, 1: 7, 2: 7, 3: 7, 5: 15}


@pytest.mark.parametrize("place", PLACES)
def test_moving_keeps_the_rows(place: str) -> None:
    table = Table(rows_of)
    table[list(range(9))] = rows_of(list(range(9)))
    table.settle(CPU, place)  # type: ignore[arg-type]
    assert table[[8, 0]]["m"]["n"].tolist() == [8, 0]
    table[[4]] = rows_of([70])
    assert table[[4, 5, 100]]["m"]["n"].tolist() == [70, 5, 100]


@pytest.mark.parametrize("place", PLACES)
def test_rows_may_change_their_leaves_and_shapes(place: str) -> None:
    table = settled({}, place)
    table[[0, 1, 2]] = {"w": torch.zeros(3, 2)}
    table[[1]] = {"w": torch.ones(1, 5), "v": torch.ones(1)}
    assert table[[1]]["w"].shape == (1, 5) and set(table[[1]]) == {"w", "v"}
    assert table[[0, 2]]["w"].shape == (2, 2) and set(table[[0]]) == {"w"}
    table[[3]] = {"w": torch.full((1, 2), 3.0)}  # takes the place that 1 left
    table[[2]] = {}
    assert table[[2]] == {} and table[[3, 0]]["w"].tolist() == [[3, 3], [0, 0]]
    with pytest.raises(RuntimeError):
        table[[0, 1]]


def test_the_first_row_decides_the_order_of_the_leaves() -> None:
    table = Table({})
    table[[0, 2]] = {"a": torch.tensor([0.0, 2.0]), "b": torch.zeros(2)}
    table[[1]] = {"b": torch.ones(1), "a": torch.ones(1)}
    assert list(table[[0, 1, 2]]) == ["a", "b"] and list(table[[1, 0]]) == ["b", "a"]
    assert table[[1, 0, 2]]["a"].tolist() == [1, 0, 2]


def test_a_common_default_is_not_stored() -> None:
    table = Table({"w": torch.arange(2.0)})
    assert table[[4, 5]]["w"].tolist() == [[0, 1], [0, 1]] and not rows(table)
    table[[5]] = {"w": torch.ones(1, 2)}
    assert table[[4, 5, 6]]["w"].tolist() == [[0, 1], [1, 1], [0, 1]] and set(rows(table)) == {5}


def test_nobody_and_twice_the_same_client() -> None:
    table = Table({"w": torch.zeros(1)})
    assert table[[]] == {}
    table[[]] = {}
    table[[1, 1]] = {"w": torch.tensor([[1.0], [2.0]])}
    assert table[[1]]["w"].item() == 2


def test_refilling_replaces_all_rows() -> None:
    table = settled(rows_of, "disk")
    table[[1, 2]] = rows_of([1, 2])
    saved = rows(table)
    other = settled(rows_of, "host")
    other[[1, 9]] = rows_of([8, 9])
    other.refill(saved | {3: {}})
    assert set(rows(other)) == {1, 2, 3} and other[[3]] == {}
    assert other[[2, 1]]["m"]["n"].tolist() == [2, 1]


def test_mixing_goes_in_pieces(monkeypatch: Any) -> None:
    ids = list(range(10))
    table = settled({"w": torch.zeros(4, dtype=torch.float64)}, "host")
    rows = torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table[ids] = {"w": rows}
    weight = torch.linspace(0, 1, 10, dtype=torch.float64)
    monkeypatch.setattr(clients, "PIECE", 3)
    torch.testing.assert_close(table.mix(weight, ids)["w"], weight @ rows)


@pytest.mark.parametrize(
    ("device", "ram", "place"), [(1, 9, "device"), (0, 9, "host"), (0, 0, "disk")]
)
def test_auto_moves_out_before_the_memory_is_full(
    device: int, ram: int, place: str, monkeypatch: Any
) -> None:
    """With a pretended GPU: what is free there, and in RAM, in tenfold sizes of the table."""
    monkeypatch.setattr(clients, "SMALL", 0)
    size = 10 * 8 * 100
    pretended = torch.device("meta")
    free = {"meta": 10 * device * size, "cpu": 10 * ram * size}
    monkeypatch.setattr(clients.devices, "free_memory", lambda where: free[where.type])
    table = Table({})
    table.settle(pretended)
    store = storage.RowStore((("w", torch.Size([100]), torch.float64),), {}, pretended, "device")
    assert table._roomy(0, store, 10) == place


def test_auto_on_a_cpu_goes_to_disk(monkeypatch: Any) -> None:
    monkeypatch.setattr(clients, "SMALL", 1000)
    monkeypatch.setattr(clients.devices, "free_memory", lambda where: 20_000)
    table = settled(rows_of, "auto")
    table[[0, 1]] = rows_of([0, 1])
    assert table._place == "device"
    table[list(range(400))] = rows_of(list(range(400)))
    assert table._place == "disk" and table[[399, 0]]["m"]["n"].tolist() == [399, 0]


@pytest.mark.parametrize("call", ["posix_fallocate", "pwritev"])
def test_a_full_disk_is_one_clear_line(call: str, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage.os, call, full)
    table = settled({}, "disk")
    with pytest.raises(UserError, match=r"No space left on device; set TMPDIR.*--keep host"):
        table[[0]] = {"w": torch.zeros(1, 8)}


def test_calls_that_move_a_part_of_a_row_are_repeated(monkeypatch: Any) -> None:
    """At most so many leaves and bytes a call."""
    asked: list[int] = []

    def few(call: Any) -> Any:
        def moved(file: int, parts: list[memoryview], at: int) -> int:
            asked.append(len(parts))
            return int(call(file, [parts[0][:5]], at))

        return moved

    monkeypatch.setattr(storage, "MOST_PARTS", 2)
    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(storage.os, name, few(getattr(storage.os, name)))
    table = settled({}, "disk")
    given = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, 0), "c": torch.tensor([8, 9])}
    table[[4, 1]] = given | {"d": torch.tensor([True, False])}
    read = table[[1, 4]]
    assert read["a"].tolist() == [[3, 4, 5], [0, 1, 2]] and read["b"].shape == (2, 0)
    assert read["c"].tolist() == [9, 8] and read["d"].tolist() == [False, True]
    assert max(asked) == 2


def test_a_file_that_lost_its_end_is_one_clear_line(monkeypatch: Any) -> None:
    table = settled({}, "disk")
    table[[0]] = {"w": torch.ones(1, 8)}
    table._stores[0]._rows.file.truncate(3)  # type: ignore[union-attr]
    with pytest.raises(UserError, match="the file is shorter than it was"):
        table[[0]]


@pytest.mark.parametrize("place", PLACES)
def test_a_first_write_without_room_leaves_an_empty_table(place: str, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise UserError("no room")

    table = settled({}, "disk")
    with monkeypatch.context() as patched, pytest.raises(UserError):
        patched.setattr(storage.FileRows, "grow", full)
        table[[0]] = {"w": torch.zeros(1, 8)}
    assert not rows(table)
    table.settle(CPU, place)  # type: ignore[arg-type]
    table[[0]] = {"w": torch.ones(1, 8)}
    assert table[[0]]["w"].sum() == 8


def test_rows_leave_a_device_some_at_once(monkeypatch: Any) -> None:
    """A table goes to the disk where memory is short: no copy of all of it may be made before."""
    monkeypatch.setattr(storage, "PIECE", 4)
    copied: list[int] = []

    class Device(torch.Tensor):
        """What lies on a device: it must be copied to be read by the host."""

        def cpu(self) -> Tensor:
            copied.append(len(self))
            return self.as_subclass(Tensor).clone()

    memory = storage.MemoryRows((("w", torch.Size([2]), torch.float32),), torch.device("meta"))
    memory.leaves = {"w": torch.arange(20.0).view(10, 2).as_subclass(Device)}
    monkeypatch.setattr(Tensor, "to", lambda self, *_: self)  # there is no such device here
    found = [row["w"].tolist() for row in memory.each(range(10))]
    assert found == [[2.0 * k, 2.0 * k + 1] for k in range(10)]
    assert copied == [4, 4, 2]


def test_no_temporary_directory_is_one_clear_line(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(UserError, match="set TMPDIR to a directory with room"):
        settled({}, "disk")[[0]] = {"w": torch.zeros(1, 8)}


def test_files_are_gone_with_the_table(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = settled({}, "disk")
    table[[0]] = {"w": torch.ones(1, 8)}
    files = [s._rows.file for s in table._stores]  # type: ignore[union-attr]
    assert not list(tmp_path.iterdir())  # not even a name while it is used
    del table
    assert files[0].closed
