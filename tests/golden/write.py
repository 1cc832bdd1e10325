"""Write golden bundles that are missing: python -m tests.golden.write, or with --all over those that are there.

A bundle, once released, must be readable for as long as its versions are: write over one only while nobody has it, or
together with new versions and new names. Each NAME.segment is a segment as docs/wire-format.md has it, without the
space behind its manifest; references.json has the references.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import rollferry
from tests.golden.batches import CASES

FOLDER = Path(__file__).parent
HEADER_NBYTES = 128


def write(name: str, url: str, live: Path) -> str:
    """Put the batch of one case, keep its segment, and give its reference."""
    case = CASES[name]
    with rollferry.connect(url, namespace="golden", **case.options) as ferry:
        ref = ferry.put(case.make())
    segment = (live / ref.key).read_bytes()
    manifest_nbytes = int.from_bytes(segment[24:32], "little")
    (FOLDER / f"{name}.segment").write_bytes(segment[: HEADER_NBYTES + ref.nbytes + manifest_nbytes])
    return ref.to_json()


def main() -> None:
    """Write what is missing, or everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="write over those that are there")
    everything = parser.parse_args().all
    path = FOLDER / "references.json"
    references = {} if everything or not path.exists() else json.loads(path.read_text())
    root = Path(tempfile.mkdtemp(prefix="rollferry-test-", dir="/dev/shm"))
    try:
        for name in CASES:
            if name not in references:
                references[name] = write(name, f"shm://{root}", root / "live")
    finally:
        shutil.rmtree(root)
    path.write_text(json.dumps(references, indent=1) + "\n")


if __name__ == "__main__":
    main()
