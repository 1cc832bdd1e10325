from tests.network.hosts import network as network_of_this_test

import pytest

network = pytest.fixture(network_of_this_test, name="network")
