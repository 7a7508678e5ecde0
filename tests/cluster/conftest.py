"""The cluster of this folder's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.local_cluster import LocalCluster, local_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster"), "--device", "cpu") as running:
        yield running
