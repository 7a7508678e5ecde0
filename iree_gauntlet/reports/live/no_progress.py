"""No progress: nothing is written until there is a result."""

from __future__ import annotations

from iree_gauntlet.reports.live.painter import Painter


class NoProgress(Painter):
    """Writes nothing."""

    def _line(self, text: str, verdict: str = "") -> None:
        pass

    def _began(self, text: str, *, resumed: bool) -> None:
        pass

    def _show(self, *, at_once: bool = False) -> None:
        pass
