"""`rollferry ls | stat | show | verify | gc | top`, in processes of their own and by typer's runner."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import rollferry
from rollferry.cli import app
from rollferry.cli.store import onlooker

runner = CliRunner()
BATCH = {"tokens": [np.arange(3, dtype=np.int32), np.arange(5, dtype=np.int32)], "rewards": [0.5, 1.0]}
GONE = "0" * 32


@pytest.fixture(params=["shm", "inproc"])
def url(request: pytest.FixtureRequest, shm_directory: Path) -> str:
    return f"shm://{shm_directory}" if request.param == "shm" else f"inproc://{shm_directory.name}"


def run(*arguments: str, status: int = 0, stdin: str | None = None) -> str:
    result = runner.invoke(app, list(arguments), input=stdin)
    assert result.exit_code == status, result.output
    return result.stdout


def told(*arguments: str, status: int = 0, stdin: str | None = None) -> Any:
    return json.loads(run(*arguments, "--json", status=status, stdin=stdin))


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def test_ls(url: str) -> None:
    with rollferry.connect(url) as ferry, rollferry.connect(url, namespace="other") as other:
        assert told("ls", url) == {"url": url, "bundles": []}
        ref = ferry.put(BATCH, ttl=1000)
        shared = other.put(BATCH, readers=3)
        first, second = told("ls", url)["bundles"]
        assert (first["key"], first["rows"], first["fields"]) == (ref.key, 2, ["tokens", "rewards"])
        assert 0 < first["left"] < 1000
        assert (second["id"], second["readers"], second["done"]) == (shared.id, 3, [])
        assert [info["key"] for info in told("ls", url, "--namespace", "other")["bundles"]] == [shared.key]
        text = run("ls", url)
        assert ref.id in text and shared.id in text and "0 of 3 done" in text and "alive" in text


def test_the_url_of_the_environment(shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFERRY_URL", f"shm://{shm_directory}")
    with rollferry.connect() as ferry:
        ref = ferry.put(BATCH)
        assert [info["id"] for info in told("ls")["bundles"]] == [ref.id]


def test_stat(url: str) -> None:
    with rollferry.connect(url, namespace="train") as ferry:
        ferry.put(BATCH)
        usage = told("stat", url)["usage"]
        assert usage["bundles"] == usage["namespaces"]["train"]["bundles"] == 1
        assert usage["live_nbytes"] == usage["namespaces"]["train"]["live_nbytes"] == ferry.usage().live_nbytes
        assert usage["namespaces"]["train"]["oldest_age"] > 0
        assert "train" in run("stat", url)


def test_show(url: str) -> None:
    with rollferry.connect(url, namespace="train") as ferry:
        ref = ferry.put(BATCH, ttl=7200, readers=2, policy_version=5)
        for arguments in ([ref.to_json(), url], [ref.id, url, "--namespace", "train"]):
            found = told("show", *arguments)
            tokens, rewards = found["fields"]
            assert (tokens["name"], tokens["layout"], tokens["dtype"], tokens["rows"]) == (
                "tokens",
                "ragged",
                "int32",
                2,
            )
            assert rewards["layout"] == "numbers"
            assert found["bundle"]["readers"] == 2
            assert found["ref"]["id"] == ref.id
        assert told("show", "-", url, stdin=ref.to_json() + "\n")["ref"]["policy_version"] == 5
        text = run("show", ref.to_json(), url)
        assert "int32" in text and "0 of 2 done" in text and "policy version  5" in text
        run("show", ref.id, url, status=1)  # it is of another namespace
        run("show", "nonsense", url, status=2)


def test_what_it_shows_is_one_line_without_control_characters(url: str) -> None:
    with rollferry.connect(url) as ferry:
        ref = ferry.put({"a\x1b[2Jb\nc": [1]})
        text = run("show", ref.id, url)
        assert "\x1b" not in text
        assert "a\\x1b[2Jb c" in text


def test_verify(url: str) -> None:
    with rollferry.connect(url) as plain, rollferry.connect(url, checksum=True) as checked:
        ref = checked.put(BATCH, readers=1)
        assert told("verify", ref.to_json(), url) == {
            "url": url,
            "ok": True,
            "found": f"{ref.key}: its checksums match",
        }
        assert checked.list() == [ref.id]  # it is no reader
        bare = plain.put({"batch": {"x": np.zeros(4)}}, type="dataproto")
        assert "no checksums" in told("verify", bare.id, url)["found"]
        assert "its checksums match" in told("verify", checked.append(ref, {"more": [1, 2]}).id, url)["found"]
        assert told("verify", GONE, url, status=1)["ok"] is False
        run("verify", "{", url, status=2)


def test_verify_runs_no_pickle(url: str) -> None:
    with rollferry.connect(url, allow_pickle=True) as ferry:
        ref = ferry.put({"x": [Path("a")]})
        assert "as far as it was seen" in told("verify", ref.id, url)["found"]


def test_damage_is_found(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url, checksum=True) as ferry:
        kept, ref = ferry.put(BATCH), ferry.put(BATCH)
        path = shm_directory / "live" / ref.key
        flip(path, 128 + 1)  # the payload
        found = told("verify", ref.id, url, status=1)
        assert not found["ok"]
        assert ref.key in found["found"] and "corrupt" in found["found"]
        assert len(told("ls", url)["bundles"]) == 2  # the manifest is whole
        flip(path, 128 + ref.nbytes + 40)  # the manifest
        by_key = {info["key"]: info for info in told("ls", url, status=1)["bundles"]}
        assert "corrupt" in by_key[ref.key]["damage"]
        assert by_key[kept.key]["damage"] is None
        assert "damaged" in run("ls", url, status=1)
        result = runner.invoke(app, ["show", ref.id, url])
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert result.stderr.startswith(f"rollferry show: bundle {ref.key}")


def test_damage_in_the_base_of_a_staged_bundle_is_found(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url, checksum=True) as ferry:
        base = ferry.put(BATCH)
        ref = ferry.append(base, {"more": [1, 2]})
        flip(shm_directory / "live" / base.key, 128 + 1)  # the payload
        for name in (ref.id, ref.to_json()):
            found = told("verify", name, url, status=1)
            assert not found["ok"]
            assert ref.key in found["found"] and base.key in found["found"] and "corrupt" in found["found"]


def test_gc(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.test_lifetime import later

    with rollferry.connect(url) as ferry:
        kept, over = ferry.put(BATCH), ferry.put(BATCH, ttl=10)
        assert told("gc", url)["reclaimed"] == []
        later(monkeypatch, 20)
        for dry_run in (True, False):
            options = ["--dry-run"] if dry_run else []
            found = told("gc", url, *options)
            assert found["dry_run"] is dry_run
            assert [(one["key"], one["reason"]) for one in found["reclaimed"]] == [(over.key, "time")]
            assert len(ferry.list()) == 1 + dry_run
        assert ferry.list() == [kept.id]
        assert "0 bundles removed" in run("gc", url)


@pytest.mark.parametrize("command", [["ls"], ["stat"], ["show", GONE], ["verify", GONE], ["gc"], ["top"]])
def test_engines_that_are_none(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "nosuch://"])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"rollferry {command[0]}: no engine for 'nosuch://'")
    assert result.stderr.count("\n") == 1


def test_who_only_looks_lends_no_memory() -> None:
    """What is put into a segment is lost with the process that lends it."""
    assert onlooker("mooncake://a:1?segment=8gb&chunk=1mb") == "mooncake://a:1?segment=0&chunk=1mb"
    assert onlooker("mooncake://a:1") == "mooncake://a:1?segment=0"
    assert onlooker("shm:///some/dir?pool=1gb") == "shm:///some/dir?pool=1gb"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_top_goes_on_until_it_is_interrupted(options: list[str], shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    command = [sys.executable, "-m", "rollferry.cli", "top", url, "--interval", "0.1", *options]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with (
        rollferry.connect(url, namespace="train") as ferry,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child,
    ):
        assert child.stdout is not None
        first = child.stdout.readline()
        ferry.put(BATCH)
        for seen in child.stdout:  # until it has seen what was put
            if "train" in seen:
                break
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=60)
        assert (child.returncode, errors) == (0, "")
    if options:
        assert json.loads(first)["usage"]["bundles"] == 0
        assert json.loads(seen)["usage"]["namespaces"]["train"]["bundles"] == 1
    else:
        assert first.startswith("namespace")


def test_top_on_a_terminal(shm_directory: Path) -> None:
    """What a terminal gets is one table, drawn anew."""
    import pty

    url = f"shm://{shm_directory}"
    with rollferry.connect(url, namespace="train") as ferry:
        ferry.put(BATCH)
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "rollferry.cli", "top", url, "--interval", "0.1"]
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
        child = subprocess.Popen(command, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL, env=environment)
        os.close(follower)
        seen = b""
        while seen.count(b"train") < 3:
            seen += os.read(leader, 4096)
        child.send_signal(signal.SIGINT)
        try:
            while os.read(leader, 4096):
                pass
        except OSError:  # the other side is closed
            pass
        os.close(leader)
        assert child.wait(60) == 0
        assert b"Traceback" not in seen


def test_commands_as_processes(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url) as ferry:
        ref = ferry.put(BATCH)
    command = [sys.executable, "-W", "error", "-m", "rollferry.cli"]
    for arguments in (["ls", url], ["stat", url], ["show", "-", url], ["verify", "-", url], ["gc", url]):
        done = subprocess.run([*command, *arguments], input=ref.to_json(), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert done.stdout
