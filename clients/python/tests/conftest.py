"""Real clusters for the tests. VOLLEY_BINARY names the binary."""

from __future__ import annotations

import pytest

from cluster import Cluster, Up


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Three coordinators and two workers that stay alive, with all models of the tests."""
    with Cluster(tmp_path_factory.mktemp("cluster"), coordinators=3, workers=2) as cluster:
        cluster.deploy_all()
        yield cluster


@pytest.fixture
def mortal(tmp_path):
    """Three coordinators and two workers of one test, which may kill them."""
    with Cluster(tmp_path, coordinators=3, workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def locked(tmp_path_factory):
    """A cluster in one process that requires keys."""
    with Up(tmp_path_factory.mktemp("locked"), keys=True) as up:
        yield up


@pytest.fixture(params=["flight", "rest"])
def transport(request):
    return request.param


@pytest.fixture
def client(cluster):
    with cluster.client() as client:
        yield client
