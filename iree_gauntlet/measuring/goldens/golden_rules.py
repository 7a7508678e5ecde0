"""Rules by which a golden time follows from the times of several runs, by pure functions.

- `mean*1.1`: the limit is the mean of the runs without outliers, times a factor.
- `1 in 1000`, or `p99.9`: one run in 1,000 is above the limit as long as nothing changes.

The second rule assumes nothing about the noise, except that the order of the runs means nothing. Then the next run is
above the k-th largest of n with probability k/(n + 1), because all ranks among the n + 1 runs are equally likely for it
(David and Nagaraja, Order Statistics, 3rd edition, 2003, chapter 7). Between two runs, the limit is interpolated. There
is no limit above the largest run: a fit to the other runs knows nothing about rare disturbances, which decide how often
such a limit is exceeded (docs/explanation/statistics.md has measured noise).
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


# With fewer runs, a mean says little; the change points of a history take a step as certain from as many runs on.
_MIN_RUNS = 5
_MIN_OUTLIER_COUNT = 3
_MAX_SCORE, _SCORE_OF_DEVIATION = 3.5, 0.6745
_MIN_OUTLIER_RATIO = 1.1
_MEAN_DIGITS, _QUANTILE_DIGITS = 3, 4
_MEAN = re.compile(r"mean\*(\d+(?:\.\d+)?)")
_PERCENTILE = re.compile(r"p([5-9]\d(?:\.\d+)?)")
_SHARE = re.compile(r"1in(\d+)")


def find_outliers(times: Sequence[float]) -> set[int]:
    """Return the indices of the outliers among positive times.

    The modified z-score of an outlier is above 3.5 (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993), and
    it differs from the median by more than 10 %. Logarithms are compared: half of the median is as far away as twice
    the median. Among fewer than three times, nothing says which is the outlier.
    """
    if len(times) < _MIN_OUTLIER_COUNT:
        return set()
    logs = [math.log(time) for time in times]
    middle = statistics.median(logs)
    distances = [abs(log - middle) for log in logs]
    max_distance = max(_MAX_SCORE / _SCORE_OF_DEVIATION * statistics.median(distances), math.log(_MIN_OUTLIER_RATIO))
    return {index for index, distance in enumerate(distances) if distance > max_distance}


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A rule for a golden time.

    Attributes:
        text: the rule as the user wrote it; empty for the default: the golden is the mean.
        factor: the limit as a multiple of the mean; 0 for the golden's own factor.
        share: the share of runs above the limit; None if the mean decides.
    """

    text: str = ""
    factor: float = 0.0
    share: Fraction | None = None

    @property
    def min_runs(self) -> int:
        """The smallest number of runs from which a golden is computed."""
        return _MIN_RUNS if self.share is None else max(_MIN_RUNS, math.ceil(1 / self.share) - 1)

    def compute_golden(self, times: Sequence[float], golden_factor: float) -> float:
        """Compute the golden whose limit, the golden times its factor, follows from at least `min_runs` times.

        The mean is rounded to three digits. A golden of a quantile is rounded up to four digits, so that rounding
        causes no alarms.
        """
        if self.share is None:
            outliers = find_outliers(times)
            mean = statistics.fmean(time for index, time in enumerate(times) if index not in outliers)
            value = mean * (self.factor or golden_factor) / golden_factor
            return float(f"{value:.{_MEAN_DIGITS}g}")
        ordered_times = sorted(times)
        position = (len(times) + 1) * (1 - self.share) - 1
        index = math.floor(position)
        low, high = ordered_times[index], ordered_times[min(index + 1, len(times) - 1)]
        value = (low + float(position - index) * (high - low)) / golden_factor
        step = 10.0 ** (math.floor(math.log10(value)) - _QUANTILE_DIGITS + 1)
        return float(f"{math.ceil(value / step) * step:.{_QUANTILE_DIGITS}g}")


def parse_rule(text: str) -> LimitRule:
    """Parse a rule of the command line; an empty text is the default rule."""
    words = "".join(text.split()).lower()
    if not words:
        return LimitRule()
    if match := _MEAN.fullmatch(words):
        factor = float(match[1])
        if 0 < factor < math.inf:
            return LimitRule(text, factor=factor)
    elif match := _PERCENTILE.fullmatch(words):
        return LimitRule(text, share=1 - Fraction(match[1]) / 100)
    elif (match := _SHARE.fullmatch(words)) and int(match[1]) > 1:
        return LimitRule(text, share=Fraction(1, int(match[1])))
    raise UsageError(f"--rule {text}: no such rule", "Rules are mean*1.1, p99 (from p50 on) and '1 in 1000'.")
