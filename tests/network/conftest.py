import os
import shutil
from collections.abc import Iterator

import pytest

from tests.contract.mooncake_master import find_master
from tests.network.hosts import Network, ip


@pytest.fixture
def network() -> Iterator[Network]:
    """A network; skips the test where there can be none."""
    find_master()
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not (shutil.which("ip") and shutil.which("tc")):
        pytest.skip("network namespaces need ip and tc: apt-get install iproute2")
    with Network() as made:
        yield made
    assert made.namespace("") not in ip("netns"), "not all was taken down"
    assert all(process.ended() for process in made.processes)
