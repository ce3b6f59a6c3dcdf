"""Who may see the page, and what it may show: this machine, and the runs below one folder."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs starlette: pip install 'idiolect[ui]'")
httpx = pytest.importorskip("httpx")

from tests.ui.pages import asking, served, small_run


def test_a_foreign_host_name_is_refused(tmp_path: Path) -> None:
    """A page elsewhere can let its own name point to this machine; the browser then sends it."""
    with asking(tmp_path, tmp_path) as client:
        assert client.get("/").status_code == 200
        for name in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
            answer = client.get("/api/runs", headers={"host": name})
            assert answer.status_code in (400, 403), name
        assert client.get("/", headers={"host": "localhost:1"}).status_code == 200
        assert client.get("/", headers={"host": "[::1]:1"}).status_code == 200


def test_changes_need_the_key_of_the_page(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    with served(tmp_path, tmp_path / ".logs") as (address, page):
        for what in ("stop", "resume"):
            for key in ({}, {"x-idiolect": "guess"}, {"x-idiolect": ""}):
                answer = httpx.post(f"{address}/api/{what}?run=run", headers=key)
                assert answer.status_code == 403
            assert httpx.get(f"{address}/api/{what}?run=run").status_code == 405
        assert not (tmp_path / "run/.stop").exists()
        stop = httpx.post(f"{address}/api/stop?run=run", headers={"x-idiolect": page.key})
        assert stop.status_code == 400 and "not running" in stop.json()["error"]


def test_beyond_this_machine_a_token_is_needed(tmp_path: Path) -> None:
    with asking(tmp_path, tmp_path, token="secret") as client:
        assert client.get("/").status_code == 401
        assert client.get("/?token=wrong").status_code == 401
        assert client.get("/", headers={"cookie": "idiolect=wrong; a b=c; ="}).status_code == 401
        assert client.get("/static/ui.js").status_code == 401
        welcome = client.get("/?token=secret")
        assert welcome.status_code == 303 and welcome.headers["location"] == "/"
        cookie = welcome.headers["set-cookie"].lower()
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert client.get("/api/runs", headers={"host": "elsewhere"}).status_code == 200


def test_every_answer_says_what_the_page_may_do(tmp_path: Path) -> None:
    with asking(tmp_path, tmp_path) as client:
        for path in ("/", "/static/ui.js", "/api/runs", "/api/report", "/nothing"):
            headers = client.get(path).headers
            policy = dict(
                p.strip().split(" ", 1) for p in headers["content-security-policy"].split(";")
            )
            assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'"
            assert policy["connect-src"] == "'self'" and policy["frame-ancestors"] == "'none'"
            assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["../web.py", "..%2f..%2faccess.py", "/etc/passwd", "index.html", "ui.js/..", ""]
)
def test_only_the_files_of_the_page_are_served(path: str, tmp_path: Path) -> None:
    with asking(tmp_path, tmp_path) as client:
        assert client.get(f"/static/{path}").status_code == 404


@pytest.mark.parametrize(
    "id", ["..", "../outside", "a/../../outside", "/etc", "", ".", "outside/", "%2e%2e", "a\x00b"]
)
def test_no_path_outside_the_folder_is_a_run(id: str, tmp_path: Path) -> None:
    small_run(tmp_path / "outside")
    (tmp_path / "runs").mkdir()
    with asking(tmp_path / "runs", tmp_path / "logs") as client:
        for what in ("report", "client", "matrix", "federation"):
            answer = client.get(f"/api/{what}", params={"run": id, "client": "0", "round": "0"})
            assert answer.status_code == 400 and "no run" in answer.json()["error"]


def listed(client: Any) -> dict[str, dict[str, Any]]:
    return {run["id"]: run for run in client.get("/api/runs").json()["runs"]}


def test_links_are_not_followed(tmp_path: Path) -> None:
    small_run(tmp_path / "outside")
    runs = tmp_path / "runs"
    small_run(runs / "sound")
    (runs / "linked").symlink_to(tmp_path / "outside")
    for name in ("config.yaml", "events.jsonl", "clients.parquet", "env.json"):
        run = small_run(runs / f"with-{name}")
        (run / name).unlink()
        (run / name).symlink_to(tmp_path / "outside" / name)
    run = small_run(runs / "with-flower")
    (run / "flower").symlink_to(tmp_path / "outside")
    with asking(runs, tmp_path / "logs") as client:
        found = listed(client)
        assert "linked" not in found and found.pop("sound")["state"] == "finished"
        assert len(found) == 5
        for id, run in found.items():
            assert run["state"] == "problem" and "link" in run["problem"], run
            assert client.get("/api/report", params={"run": id}).status_code == 400
            assert client.get("/api/federation", params={"run": id}).status_code == 400


MARKUP = "<img src=x onerror=alert(1)>"


def damage(kind: str, run: Path) -> None:
    config = run / "config.yaml"
    if kind == "pipe":
        config.unlink()
        os.mkfifo(config)
    elif kind == "device":
        config.unlink()
        config.symlink_to("/dev/zero")
    elif kind == "giant":
        with config.open("ab") as file:
            file.truncate(5 << 20)
    elif kind == "half":
        config.write_text(config.read_text()[:40])
    elif kind == "events":
        (run / "summary.json").unlink()
        (run / "events.jsonl").write_text('{"round": 0, "accuracy": 3}\n')
    elif kind == "infinite":
        (run / "summary.json").write_text(
            '{"rounds": 3, "seconds": Infinity, "accuracy": {"last": {"mean": 1e999}}}'
        )
    elif kind == "long":
        (run / "summary.json").write_text("9" * 5000)
    elif kind == "code":
        config.write_text("!!python/object/apply:os.system ['touch harmed']\n")
    elif kind == "bomb":
        text = "a: &a [x,x,x,x,x,x,x,x,x]\n"
        for one, two in zip("abcdefgh", "bcdefghi", strict=True):
            text += f"{two}: &{two} [{','.join([f'*{one}'] * 9)}]\n"
        config.write_text(text)
    elif kind == "matrices":
        (run / "matrices.safetensors").write_bytes(b"\xff" * 99)


DAMAGES = ("pipe", "device", "giant", "half", "events", "infinite", "long", "code", "bomb")


def test_damaged_runs_are_problems_among_sound_ones(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for kind in DAMAGES:
        damage(kind, small_run(runs / kind))
    small_run(runs / "sound")
    small_run(runs / MARKUP)
    small_run(runs / "escape\x1b[31m\nline", method={"name": "fedavg"})
    os.mkdir(os.fsencode(runs) + b"/\xff\xfe")
    (runs / os.fsdecode(b"\xff\xfe") / "config.yaml").write_text("{}")
    with asking(runs, tmp_path / "logs") as client:
        found = listed(client)
        assert found["sound"]["state"] == "finished"
        for kind in DAMAGES:
            if kind != "infinite":
                assert found[kind]["state"] == "problem" and found[kind]["problem"], kind
            answer = client.get("/api/report", params={"run": kind})
            assert answer.status_code == 400, kind
            assert str(tmp_path) not in answer.text and "\n" not in answer.json()["error"]
        assert found["escape\x1b[31m\nline"]["label"] == r"escape\x1b[31m\nline"
        shown = client.get("/api/report", params={"run": MARKUP}).json()
        assert "<img" not in shown["html"]
        assert len(found) == len(DAMAGES) + 4
    assert not list(tmp_path.rglob("harmed")) and not Path("harmed").exists()


def test_ten_thousand_runs_are_listed_after_reading_one_page_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from idiolect.ui import run_index

    for number in range(10_000):
        run = tmp_path / "sweep" / f"run{number:05}"
        run.mkdir(parents=True)
        (run / "config.yaml").touch()
    read: list[Path] = []
    monkeypatch.setattr(run_index, "read_config", lambda path: read.append(path) or {})
    with asking(tmp_path, tmp_path / ".logs") as client:
        found = client.get("/api/runs").json()
        assert found["total"] == 10_000 and len(found["runs"]) == 100
        assert len(read) == 100
        client.get("/api/runs")
        assert len(read) == 100
