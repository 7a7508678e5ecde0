"""The number of examples of property tests: few for costly tests by default, many for all tests in `nox -s stress`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["register_budgets", "scale_example_count"]

_EXAMPLES = 50
_MANY_EXAMPLES = 1000


def register_budgets() -> None:
    """Register the profiles `any-speed`, which becomes active, and `many`, which `--hypothesis-profile` selects."""
    # Hypothesis' defaults would fail an example that takes 200 ms, and examples that are slow to generate.
    for name, examples in (("any-speed", _EXAMPLES), ("many", _MANY_EXAMPLES)):
        settings.register_profile(
            name, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
        )
    settings.load_profile("any-speed")


def scale_example_count(fraction: float) -> int:
    """Return a fraction of the session's number of examples, for examples that take milliseconds each."""
    profile = settings.default
    assert profile is not None
    return round(profile.max_examples * fraction)
