"""The cluster of this folder's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.local_cluster import HangingTools, LocalCluster, local_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="package")
def tools(tmp_path_factory: pytest.TempPathFactory) -> HangingTools:
    """The tools on the PATH of the cluster's workers, for runs with `--iree path`."""
    tools = HangingTools(tmp_path_factory.mktemp("tools") / "bin")
    tools.stop_hanging()
    return tools


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory, tools: HangingTools) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster"), "--device", "cpu", environ=tools.environ) as running:
        yield running
