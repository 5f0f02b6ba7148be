"""What every Python test file shares: where the binary and the model are, and how skips are counted."""

import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALL_SKIPPED = 77  # what ctest counts as skipped


@pytest.fixture(scope="session")
def granule():
    """The granule binary of the build under test."""
    path = os.environ.get("GRANULE_BIN")
    if not path:
        pytest.skip("GRANULE_BIN is not set: run through ctest, or set it to a granule binary")
    assert os.access(path, os.X_OK), f"GRANULE_BIN={path} is not an executable"
    return path


@pytest.fixture(scope="session")
def real_model():
    """The folder of the real model. Set but unusable is a failure, absent by default is a skip."""
    asked = os.environ.get("GRANULE_TEST_MODEL")
    folder = pathlib.Path(asked) if asked else ROOT / "models/smollm2-135m-instruct"
    usable = (folder / "genai_config.json").is_file()
    if asked:
        assert usable, f"GRANULE_TEST_MODEL={asked} holds no genai_config.json"
    elif not usable:
        pytest.skip("no model in models/smollm2-135m-instruct: make model makes it")
    return folder


def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    ran = sum(len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "xfailed", "xpassed"))
    if exitstatus == 0 and ran == 0 and reporter.stats.get("skipped"):
        session.exitstatus = ALL_SKIPPED
