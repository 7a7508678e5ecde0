"""The outliers among the times from which a golden is proposed."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


_MIN_OUTLIER_COUNT = 3
_MAX_SCORE, _SCORE_OF_DEVIATION = 3.5, 0.6745
_MIN_OUTLIER_RATIO = 1.1


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
