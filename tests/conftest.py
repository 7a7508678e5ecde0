"""What all tests share: servers, one of each kind a test process, started when first asked for; and signals."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from emulators import Azurite, Bucket, azurite_server, google_server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure() -> None:
    """Have Ctrl-C reach the programs that tests start.

    A shell without job control starts what runs in its background with SIGINT ignored, and so would they be.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite_server(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_server(tmp_path_factory.mktemp("s3")) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with google_server(tmp_path_factory.mktemp("google")) as bucket:
        yield bucket
