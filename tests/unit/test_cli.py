"""The command line."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import rollferry
from rollferry.cli import app
from rollferry.cli.demo import demo
from rollferry.demo import DEFAULT_STEPS, DemoOptions
from rollferry.files import load_batch

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(app, ["version"])
    assert result.exit_code == 0
    assert result.output.startswith(f"rollferry {rollferry.__version__} ")


def test_explain_shows_each_field_of_an_npz_file(tmp_path: Path) -> None:
    file = tmp_path / "batch.npz"
    np.savez(file, tokens=np.arange(6).reshape(2, 3), rewards=np.zeros(2))
    result = runner.invoke(app, ["explain", str(file)])
    assert result.exit_code == 0, result.output
    assert "tokens" in result.output
    assert "rewards" in result.output


def test_explain_shows_each_field_of_a_json_file(tmp_path: Path) -> None:
    file = tmp_path / "batch.json"
    file.write_text(json.dumps({"prompts": ["a", "b"], "lengths": [1, 2], "judge": None}))
    result = runner.invoke(app, ["explain", str(file)])
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in ("prompts", "lengths", "judge"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("batch.pkl", b"\x80\x04N.", ".npz or .json"),
        ("batch", b"", ".npz or .json"),
        ("batch.npz", b"\x80\x04N.", "pickle"),
        ("batch.npz", b"PK\x03\x04 no archive", "not an .npz archive"),
        ("batch.json", b"{", "not JSON"),
        ("batch.json", b"[1, 2]", "not list"),
    ],
)
def test_explain_refuses_other_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    result = runner.invoke(app, ["explain", str(file)])
    assert result.exit_code == 1
    assert message in result.output


def test_explain_never_unpickles(tmp_path: Path) -> None:
    file = tmp_path / "batch.npz"
    np.savez(file, objects=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="pickled ones are refused"):
        load_batch(file)


def test_demo_defaults_are_those_of_the_demo() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(demo).parameters.items()}
    assert defaults["steps"] == DEFAULT_STEPS
    options = DemoOptions()
    assert all(defaults[name] == getattr(options, name) for name in ("workers", "trainers", "max_staleness", "url"))


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--mode", "other"], ["--workers", "17"], ["--seed", "-1"]])
def test_demo_refuses_bad_options(arguments: list[str]) -> None:
    assert runner.invoke(app, ["demo", *arguments]).exit_code == 2


def test_demo_says_what_is_wrong_with_a_url() -> None:
    result = runner.invoke(app, ["demo", "--steps", "1", "--url", "nosuch://"])
    assert result.exit_code == 1
    assert "rollferry demo: " in result.output


def test_import_is_light() -> None:
    code = (
        "import sys, rollferry.cli\n"
        "heavy = {'matplotlib', 'torch', 'ray', 'PIL', 'mooncake', 'rollferry.bench', 'rollferry.demo', 'rollferry.doctor'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
