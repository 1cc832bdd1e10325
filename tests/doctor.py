"""Running `rollferry doctor` in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import rollferry

SOURCE = str(Path(rollferry.__file__).parents[1])
STATES = {"ok", "warn", "fail", "absent", "skipped"}


class Report:
    """What it said, and its exit status; the JSON is checked."""

    def __init__(self, *arguments: str, first: Path | None = None, limit: str = "", **env: str) -> None:
        """Folder `first` comes first on the path; `limit` is a shell command to run before."""
        path = os.pathsep.join([*([str(first)] if first else []), SOURCE])
        ours = ("ROLLFERRY_", "MOONCAKE_", "RAY_ADDRESS")
        outer = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        command = [sys.executable, "-m", "rollferry.cli", "doctor", *arguments, "--json"]
        shell = ["sh", "-c", f'{limit}; exec "$@"', "sh"] if limit else []
        done = subprocess.run(
            [*shell, *command], capture_output=True, text=True, timeout=240, env={**outer, "PYTHONPATH": path, **env}
        )
        self.status = done.returncode
        self.said = done.stdout + done.stderr
        assert self.status in (0, 1), self.said
        assert done.stderr == "", self.said
        document = json.loads(done.stdout)
        assert set(document) == {"url", "ok", "checks"}
        self.url = document["url"]
        self.checks = {check["name"]: check for check in document["checks"]}
        assert len(self.checks) == len(document["checks"]), "a name occurs twice"
        for check in document["checks"]:
            assert set(check) == {"name", "state", "found", "advice"}
            assert all(type(value) is str for value in check.values())
            assert check["state"] in STATES
            assert check["found"]
            assert bool(check["advice"]) == (check["state"] in ("warn", "fail", "absent")), check
        assert document["ok"] == ("fail" not in self.states.values()) == (self.status == 0)

    @property
    def states(self) -> dict[str, str]:
        """State of each check."""
        return {name: check["state"] for name, check in self.checks.items()}

    def named(self, state: str) -> list[str]:
        """The checks of a state."""
        return [name for name, own in self.states.items() if own == state]
