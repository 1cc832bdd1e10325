"""`rollferry doctor`: shm://, inproc://, packages, and how it ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import rollferry
from rollferry import _native
from rollferry.checks import Check, Finding, Step, ok, size, take
from rollferry.cli import app
from rollferry.engines.registry import ENGINES, checks_of, packages, parse_url
from rollferry.errors import EngineError
from tests.doctor import SOURCE, Report

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and chown need root")
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def modules(folder: Path, **sources: str) -> Path:
    """A folder of packages that stand in for real ones."""
    for name, source in sources.items():
        package = folder / name
        package.mkdir()
        (package / "__init__.py").write_text(source)
    return folder


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(tmp_path)], check=False)
    if done.returncode:
        pytest.skip("a tmpfs can't be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_healthy_directory_stays_as_it_is(shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        kept = ferry.put({"x": np.arange(1000)})
        ferry.remove(ferry.put({"x": np.arange(100_000)}))
        before = sorted(shm_directory.rglob("*"))
        report = Report(f"shm://{shm_directory}?pool=1gb")
        assert sorted(shm_directory.rglob("*")) == before
        assert ferry.get(kept)["x"][999] == 999
    assert set(report.states.values()) <= {"ok", "warn"}, report.said
    assert "1 bundles" in report.checks["left behind"]["found"]
    assert "came back equal" in report.checks["round trip"]["found"]


def test_directory_that_is_not_there_is_not_made(shm_directory: Path) -> None:
    report = Report(f"shm://{shm_directory}/a/b%20c")
    assert report.status == 0, report.said
    assert "a/b c can be made" in report.checks["directory"]["found"]
    assert os.listdir(shm_directory) == []


def test_directory_open_to_others(shm_directory: Path) -> None:
    shm_directory.chmod(0o777)
    report = Report(f"shm://{shm_directory}")
    assert report.status == 1
    assert report.named("fail") == ["private"]
    assert "chmod" in report.checks["private"]["advice"]
    assert report.states["round trip"] == "skipped"
    assert report.checks["round trip"]["found"].startswith("needs: private")


def test_folder_open_to_others(shm_directory: Path) -> None:
    rollferry.connect(f"shm://{shm_directory}").close()
    (shm_directory / "live").chmod(0o755)
    assert Report(f"shm://{shm_directory}").named("fail") == ["private"]


@ROOT_ONLY
def test_directory_of_another(shm_directory: Path) -> None:
    os.chown(shm_directory, 12345, 12345)
    report = Report(f"shm://{shm_directory}")
    assert report.named("fail") == ["private"]
    subprocess.run(report.checks["private"]["advice"].split(";")[0], shell=True, check=True)  # what it says helps
    assert Report(f"shm://{shm_directory}").status == 0


def test_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = Report(f"shm://{tmp_path}/file/below")
    assert report.named("fail") == ["directory"]
    assert report.states["round trip"] == "skipped"


@ROOT_ONLY
def test_tmpfs_too_small(tmpfs: Path) -> None:
    report = Report(f"shm://{tmpfs}")
    assert (report.status, report.named("fail")) == (1, ["round trip"]), report.said
    assert report.named("warn") == ["room"]
    for name in ("room", "round trip"):
        assert report.checks[name]["advice"] == f"mount -o remount,size=16g {tmpfs}"
    subprocess.run(["mount", "-o", "remount,size=2g", str(tmpfs)], check=True)
    assert Report(f"shm://{tmpfs}").named("ok") == list(report.checks)
    assert os.listdir(tmpfs) == []


@ROOT_ONLY
def test_readonly_directory(tmpfs: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    assert Report(f"shm://{tmpfs}").named("fail") == ["directory"]


def test_directory_on_a_disk(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    in_memory = _native.is_memory_backed(fd)
    os.close(fd)
    report = Report(f"shm://{tmp_path}")
    assert report.states["in memory"] == ("ok" if in_memory else "warn")
    assert report.states["round trip"] == "ok", report.said
    assert os.listdir(tmp_path) == []


def test_forgotten_bundle_and_what_to_do_about_it(shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ferry.put({"x": 1})
        for path in (shm_directory / "live").iterdir():
            os.utime(path, (0, 0))
        check = Report(f"shm://{shm_directory}").checks["left behind"]
        assert check["state"] == "warn"
        command = check["advice"].partition("python ")[2]
        subprocess.run(f"{sys.executable} {command}", shell=True, check=True, env={**os.environ, "PYTHONPATH": SOURCE})
        assert ferry.list() == []


def test_few_descriptors(shm_directory: Path) -> None:
    report = Report(f"shm://{shm_directory}", limit="ulimit -n 200")
    assert "descriptors" in report.named("warn"), report.said


def test_inproc_by_the_environment() -> None:
    report = Report(ROLLFERRY_URL="inproc://mine?chunk=1000")
    assert (report.status, report.url) == (0, "inproc://mine?chunk=1000"), report.said
    assert list(report.checks) == ["Python", "numpy", "native core", "round trip"]


EMPTY = {"torch": "", "tensordict": "", "PIL": "", "ray": "", "mooncake": ""}


def test_absent_and_broken_packages_do_not_fail(tmp_path: Path) -> None:
    library = "raise ImportError('libibverbs.so.1: cannot open shared object file: No such file or directory')"
    broken = "raise RuntimeError('no such machine')"
    folder = modules(tmp_path, **EMPTY | {"mooncake": library, "tensordict": broken})
    (folder / "sitecustomize.py").write_text(BLOCKER.format(names={"ray", "torch", "PIL"}))
    report = Report(first=folder)
    assert report.status == 0, report.said
    assert report.named("absent") == ["torch", "pillow", "ray"]
    assert report.checks["ray"]["advice"] == "pip install 'rollferry[ray]'"
    assert report.checks["mooncake"]["state"] == report.checks["tensordict"]["state"] == "warn"
    assert report.checks["mooncake"]["advice"].startswith("apt-get install libibverbs1")
    assert report.states["round trip"] == "ok"


@pytest.mark.parametrize(("scheme", "rest"), [("ray", ""), ("mooncake", "127.0.0.1:1")])
def test_engine_without_its_package(scheme: str, rest: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(names={"ray", "mooncake"}))
    report = Report(f"{scheme}://{rest}", first=tmp_path)
    assert report.status == 1
    assert report.checks[scheme] == {
        "name": scheme,
        "state": "fail",
        "found": "not installed",
        "advice": f"pip install 'rollferry[{scheme}]'",
    }
    assert scheme in report.checks["round trip"]["found"]


def test_mooncake_without_its_libraries(tmp_path: Path) -> None:
    modules(tmp_path, mooncake="raise ImportError('libnuma.so.1: cannot open shared object file')")
    check = Report("mooncake://127.0.0.1:1", first=tmp_path).checks["mooncake"]
    assert check["state"] == "fail"
    assert "libnuma.so.1" in check["found"]
    assert check["advice"].startswith("apt-get install ")


def test_packages_that_crash_or_hang_end_only_their_own_check(tmp_path: Path) -> None:
    crash = "import os; os.kill(os.getpid(), 11)"
    hang = "print('noise'); import time; time.sleep(1000)"
    modules(tmp_path, **EMPTY | {"torch": crash, "tensordict": hang})
    (tmp_path / "PIL" / "Image.py").write_text("")
    (tmp_path / "mooncake" / "store.py").write_text("")
    report = Report("--timeout", "6", first=tmp_path)
    assert (report.status, report.named("fail")) == (1, ["torch", "tensordict"]), report.said
    assert "signal 11" in report.checks["torch"]["found"]
    assert report.checks["tensordict"]["found"] == "no answer within 6 s"
    assert {"pillow", "ray", "mooncake", "round trip"} <= set(report.named("ok"))


runner = CliRunner()


@pytest.mark.parametrize(
    "arguments",
    [
        ["nosuch://"],
        ["shm"],
        ["shm://host"],
        ["shm://?pool=much"],
        ["shm://?nope=1"],
        ["inproc://?chunk=0"],
        ["mooncake://"],
        ["mooncake://a:1?replicas=0"],
        ["mooncake://[a"],
        ["ray:///path"],
        ["ray://?timeout=never"],
        ["shm://", "--timeout", "0"],
        ["shm://", "--nope"],
    ],
)
def test_usage_errors(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOONCAKE_MASTER", raising=False)
    result = runner.invoke(app, ["doctor", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_usage_error_of_the_environment() -> None:
    result = runner.invoke(app, ["doctor"], env={"ROLLFERRY_URL": "nosuch://"})
    assert result.exit_code == 2


def test_plain_lines(shm_directory: Path) -> None:
    shm_directory.chmod(0o777)
    result = runner.invoke(app, ["doctor", f"shm://{shm_directory}"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[0] == f"shm://{shm_directory}"
    assert lines[-1].endswith("1 fail, 5 skipped")
    place = next(n for n, line in enumerate(lines) if line.startswith("fail    private "))
    assert lines[place + 1].strip().startswith("-> chown")
    assert "\x1b" not in result.stdout


def test_table_on_a_terminal(shm_directory: Path) -> None:
    import pty

    shm_directory.chmod(0o777)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rollferry.cli", "doctor", f"shm://{shm_directory}"]
    env = {**os.environ, "PYTHONPATH": SOURCE, "TERM": "xterm", "COLUMNS": "60"}
    child = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    said = b""
    try:
        while more := os.read(ours, 1 << 16):
            said += more
    except OSError:  # how a terminal says that the other side is gone
        pass
    os.close(ours)
    assert child.wait() == 1
    text = said.decode()
    assert "┃" in text
    advice = next(line for line in text.splitlines() if "-> " in line)
    assert advice.rstrip().endswith("shm:///some/directory")  # in one line, to copy


@pytest.mark.parametrize("scheme", ENGINES)
def test_every_engine_says_what_to_check(scheme: str) -> None:
    url = {"mooncake": "mooncake://127.0.0.1:1"}.get(scheme, f"{scheme}://")
    steps = checks_of(parse_url(url), lambda _: ok("x"))
    names = [step.name for step in steps]
    assert names[-1] == "round trip"
    assert len(set(names)) == len(names)
    assert all(step.advice for step in steps)
    for place, step in enumerate(steps):
        assert set(step.needs) <= set(names[:place])
    with pytest.raises(EngineError):
        checks_of(parse_url(f"{url}?nope=1"), lambda _: ok("x"))


def test_packages_of_engines() -> None:
    assert [package.name for package in packages()] == ["ray", "mooncake"]


@pytest.mark.parametrize(
    "url", ["shm://", "shm:///a/b", "shm:///a%20b%3F?pool=1gb", "ray://h:1?registry=a%26b", "inproc://x/y"]
)
def test_urls_survive_as_text(url: str) -> None:
    assert parse_url(parse_url(url).text) == parse_url(url)


def test_steps_go_on_after_what_is_done() -> None:
    def fails() -> Finding:
        raise ValueError("several\n  lines")

    def ends() -> Finding:
        raise AssertionError

    steps = [
        Step("a", fails, "mend a"),
        Step("b", ends, "", ("a",)),
        Step("c", ends, "", ("b",)),
        Step("d", lambda: ok("fine"), ""),
        Step("e", ends, "e"),
    ]
    checks = list(take(steps))
    assert checks == [
        Check("a", "fail", "several lines", "mend a"),
        Check("b", "skipped", "needs: a"),
        Check("c", "skipped", "needs: b"),
        Check("d", "ok", "fine"),
        Check("e", "fail", "AssertionError", "e"),
    ]
    assert list(take(steps, checks[:2])) == checks[2:]


@pytest.mark.parametrize("state", ["ok", "warn", "fail"])
def test_advice_of_the_step_unless_there_is_better(state: str) -> None:
    usual = Step("a", lambda: Finding(state, "seen"), "usual")
    better = Step("b", lambda: Finding(state, "seen", "better"), "usual")
    assert [check.advice for check in take([usual, better])] == ["" if state == "ok" else "usual", "better"]


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (5 << 50, "5,120.0 TiB")]
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
