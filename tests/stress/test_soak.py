"""Twelve seconds of the soak."""

import json
import subprocess
import sys
from pathlib import Path


def test_soak(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = [sys.executable, "-m", "tests.stress.soak", "--seconds", "12", "--kill-every", "1", "--out", str(out)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=root)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    report = json.loads(out.read_text())
    assert report == json.loads(done.stdout)
    assert report["errors"] == []
    counts = report["counts"]
    assert min(counts[name] for name in ("puts", "delivered equal", "producers killed", "consumers killed")) > 0
