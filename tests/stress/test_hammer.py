"""Ten seconds of the hammer: no wrong byte, no hang, nothing leaked, whoever is killed when."""

import json
import subprocess
import sys
from pathlib import Path


def test_killed_workers_never_hurt_the_others() -> None:
    script = Path(__file__).with_name("hammer.py")
    command = [sys.executable, "-W", "error", str(script), "--seconds", "10", "--processes", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["errors"] == []
    assert report["kills"] > 0
    assert min(report["counts"][name] for name in ("puts", "gets", "rechecks", "removals")) > 0
