"""What the tests of this folder share."""

from __future__ import annotations

import pytest

from tests.golden_agreement.workshop import Workshop


@pytest.fixture(scope="session")
def workshop(request: pytest.FixtureRequest) -> Workshop:
    """Opened models are kept for the whole session; ``--accelerator`` names the backend that is judged."""
    return Workshop(accelerator=str(request.config.getoption("--accelerator")))
