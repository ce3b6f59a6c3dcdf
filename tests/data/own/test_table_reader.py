"""How tables of text are read: by Arrow from the file itself."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from idiolect.data import Federation

TABLE = "size,client,label\n1.5,a,0\n2.5,a,1\n3.5,b,0\n4.5,b,1\n"


def test_arrow_reads_the_file_without_an_object_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of Arrow may keep its source until after the interpreter has ended; a Python object
    there kills the process (exit code 134) after any error of the user's."""
    sources: list[Any] = []
    real = pyarrow.csv.read_csv

    def noted(source: Any, **options: Any) -> pa.Table:
        sources.append(source)
        return real(source, **options)

    monkeypatch.setattr(pyarrow.csv, "read_csv", noted)
    (tmp_path / "t.csv").write_text(TABLE)
    assert Federation.from_files(tmp_path / "t.csv").n_clients == 2
    assert sources and all(isinstance(one, pa.OSFile) for one in sources)


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
def test_a_name_that_is_no_text_is_read_too(tmp_path: Path) -> None:
    file = Path(os.fsdecode(os.fsencode(tmp_path) + b"/t\xff.csv"))
    file.write_text(TABLE)
    assert Federation.from_files(file).n_clients == 2
