"""What a run remembers of each round: client table (Parquet), what methods log (safetensors).

Rounds since the last checkpoint go to a small part file; once the parts have grown to a quarter of
the whole, all is written again as one file. Each file is atomic, so a kill at any moment loses at
most the rounds after the last checkpoint, and writing stays cheap however long the run is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from idiolect.core import files
from idiolect.errors import UserError

Item = TypeVar("Item")
Columns = Mapping[str, np.ndarray]

LARGEST_LOG = 4 << 20  # bytes of one logged tensor (1,024 x 1,024 clients); no larger one is kept
LARGEST_TABLE = 50_000_000  # rows of clients.parquet: clients times rounds
LOG_BUDGET = 64 << 20  # bytes of one log over the whole run; beyond it, rounds are skipped evenly


class RoundLog(Generic[Item]):
    """Items by round, on disk as `name.suffix` and parts `name.part-000011.suffix`."""

    name: str
    suffix: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # Arrow reads `run:1` as the address of a server
        self.rounds: dict[int, Item] = {}
        self.fresh: list[int] = []  # not on disk yet
        self.in_parts = 0

    def add(self, round: int, item: Item) -> None:
        self.rounds[round] = item
        self.fresh.append(round)

    def flush(self, whole: bool = False) -> None:
        """Put everything on disk: as one file, or the fresh rounds as one more part."""
        if not self.fresh and not whole:
            return
        loose = self.in_parts + len(self.fresh)
        if whole or 4 * loose >= len(self.rounds):
            self._write(self.path, self.rounds)
            for part in self.parts():
                part.unlink(missing_ok=True)
            self.in_parts = 0
        else:
            part = self.folder / f"{self.name}.part-{self.fresh[0]:06d}.{self.suffix}"
            self._write(part, {number: self.rounds[number] for number in self.fresh})
            self.in_parts = loose
        self.fresh = []

    def load(self) -> None:
        """Read all rounds back."""
        whole = self._checked(self.path) if self.path.exists() else {}
        found = dict(whole)
        for part in self.parts():
            found.update(self._checked(part))
        self.rounds = {number: found[number] for number in sorted(found)}
        self.fresh, self.in_parts = [], len(found) - len(whole)

    def truncate(self, until: int) -> None:
        """Forget every round after `until`, on disk too."""
        kept = {number: item for number, item in self.rounds.items() if number <= until}
        if len(kept) == len(self.rounds):
            return
        self.rounds, self.fresh = kept, []
        if kept:
            self.flush(whole=True)
            return
        # The file goes before its parts: rounds in the middle of a run are never all there is.
        for path in (self.path, *self.parts()):
            path.unlink(missing_ok=True)
        self.in_parts = 0

    def _checked(self, path: Path) -> dict[int, Item]:
        try:
            return self._read(path)
        except Exception as error:  # every library has errors of its own for a damaged file
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path} cannot be read ({reason})") from None

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.{self.suffix}"

    def parts(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self.name}.part-*.{self.suffix}"))

    def _write(self, path: Path, rounds: Mapping[int, Item]) -> None:
        raise NotImplementedError

    def _read(self, path: Path) -> dict[int, Item]:
        raise NotImplementedError


class ClientLog(RoundLog[Columns]):
    """The client × round table."""

    name, suffix = "clients", "parquet"

    def table(self) -> dict[str, np.ndarray]:
        return stack(self.rounds)

    def _write(self, path: Path, rounds: Mapping[int, Columns]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with files.replacing(path) as draft:
            pq.write_table(pa.table(stack(rounds)), draft, compression="zstd")

    def _read(self, path: Path) -> dict[int, Columns]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            if rows > LARGEST_TABLE:  # a small file can claim any number
                raise ValueError(f"{rows} rows; the most is {LARGEST_TABLE}")
            table = file.read()
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
        number = columns.pop("round")
        if number.dtype.kind not in "iu" or (np.diff(number) < 0).any() or "client" not in columns:
            raise ValueError("it is no table of clients by round")
        numbers, starts = np.unique(number, return_index=True)
        parts = {name: np.split(values, starts[1:]) for name, values in columns.items()}
        return {
            int(number): {name: values[i] for name, values in parts.items()}
            for i, number in enumerate(numbers)
        }


class MatrixLog(RoundLog[dict[str, Tensor]]):
    """What methods log, as `aggregation_weight/round_0003`."""

    name, suffix = "matrices", "safetensors"

    def keep(self, round: int, logs: Mapping[str, Tensor], total: int) -> None:
        """Add what is small enough. Which rounds stay depends on sizes alone, never on chance."""
        kept = {}
        for name, value in logs.items():
            stride = max(1, -(-value.nbytes * total // LOG_BUDGET))
            if value.nbytes <= LARGEST_LOG and (round % stride == 0 or round == total):
                kept[name] = value.detach().cpu().clone()
        if kept:
            self.add(round, kept)

    def _write(self, path: Path, rounds: Mapping[int, dict[str, Tensor]]) -> None:
        flat = {
            f"{name}/round_{number:04d}": value
            for number, logs in rounds.items()
            for name, value in logs.items()
        }
        if flat or path.exists():
            files.write_tensors(path, flat)

    def _read(self, path: Path) -> dict[int, dict[str, Tensor]]:
        from safetensors.torch import load_file

        rounds: dict[int, dict[str, Tensor]] = {}
        for key, value in load_file(path).items():
            name, _, number = key.rpartition("/round_")
            rounds.setdefault(int(number), {})[name] = value
        return dict(sorted(rounds.items()))


def stack(rounds: Mapping[int, Columns]) -> dict[str, np.ndarray]:
    """All rounds below each other, with the column `round` first."""
    sizes = np.array([len(columns["client"]) for columns in rounds.values()], np.int64)
    table = {"round": np.repeat(np.array(list(rounds), np.int32), sizes)}
    for name in next(iter(rounds.values()), {}):
        table[name] = np.concatenate([np.asarray(columns[name]) for columns in rounds.values()])
    return table
