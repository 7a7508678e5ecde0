"""How much property tests try: by default little of what is costly, in `nox -s stress` much of everything."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["part_of_the_examples", "register_budgets"]

_EXAMPLES = 100
_MANY_EXAMPLES = 1000


def register_budgets() -> None:
    """Make the profiles `any-speed`, which holds from now on, and `many`, for `--hypothesis-profile`."""
    # By default an example that takes 200 ms is a failure, and so are examples that take long to make.
    for name, examples in (("any-speed", _EXAMPLES), ("many", _MANY_EXAMPLES)):
        settings.register_profile(
            name, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
        )
    settings.load_profile("any-speed")


def part_of_the_examples(share: float) -> int:
    """As many examples as make up a share of the session's, for what takes milliseconds each."""
    profile = settings.default
    assert profile is not None
    return round(profile.max_examples * share)
