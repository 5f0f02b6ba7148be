"""Fixtures of the command line's tests: the binary in a clean environment, and models that run."""

import pytest

from command_line import Cli, folder_of


@pytest.fixture(scope="session")
def cli(granule, tmp_path_factory):
    return Cli(granule, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def recall(tmp_path_factory):
    return folder_of(tmp_path_factory, "recall")


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """The same model with room for a long prompt and an answer that does not end soon."""
    return folder_of(tmp_path_factory, "endless", ctx=524288)
