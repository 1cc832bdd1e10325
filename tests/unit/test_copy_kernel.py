"""The copy kernel alone, without Python, under AddressSanitizer and UndefinedBehaviorSanitizer, and ThreadSanitizer."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [ROOT / "native" / "copy_kernel.c", ROOT / "tests" / "fuzz" / "copy_kernel_fuzz.c"]
FLAGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-DSTANDALONE", f"-I{ROOT / 'native'}"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize(("sanitizers", "count"), [("address,undefined", 400), ("thread", 60)])
def test_gathers_what_a_plain_copy_does(tmp_path: Path, sanitizers: str, count: int) -> None:
    program = tmp_path / "fuzz"
    sanitize = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *FLAGS, *sanitize, *SOURCES, "-o", program], check=True)
    for seed in (1, 2):
        done = subprocess.run([program, str(count), str(seed)], capture_output=True, text=True, timeout=120)
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("ThreadSanitizer can't run with this kernel's address space layout")
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout == f"{count} cases\n"
