"""A plot of memory over time: the resident set, what of it is mapped from files, the device's own, and the phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.document import INK
from iree_gauntlet.reports.sweeps.plot_style import figure_of
from iree_gauntlet.reports.sweeps.sweep_plots import check_matplotlib, picture
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from iree_gauntlet.micro.memory_profile import MemoryPhase, MemoryProfile


# Inches.
_WIDTH, _HEIGHT = 7.6, 3.9
_ROW_POINTS = 9
_MB = 1e6
# Of Okabe and Ito, as in the other plots.
_RESIDENT, _MAPPED, _DEVICE, _BORDER = "#0072b2", "#8c8c8c", "#d55e00", "#bdbdbd"


def memory_plot(profile: MemoryProfile, path: Path, title: str) -> tuple[Path, Path]:
    """Draw a profile; the same one gives the same bytes with the same matplotlib.

    Args:
        profile: what was seen.
        path: of the files, without an ending.
        title: stands above the plot.

    Returns:
        The SVG and the PNG.

    Raises:
        UsageError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    check_matplotlib()
    svg, png = picture(lambda: _figure(profile, title))
    files = path.with_name(f"{path.name}.svg"), path.with_name(f"{path.name}.png")
    for file, content in zip(files, (svg, png), strict=True):
        write_atomic(file, content)
    return files


def _figure(profile: MemoryProfile, title: str) -> Figure:
    figure = figure_of(title, _WIDTH, _HEIGHT)
    axes = figure.subplots()
    times = [sample.ms for sample in profile.series]
    axes.plot(times, [sample.resident_bytes / _MB for sample in profile.series], color=_RESIDENT, label="resident")
    mapped = [sample.mapped_bytes / _MB for sample in profile.series]
    axes.plot(times, mapped, color=_MAPPED, linestyle="--", label="of these, mapped from files")
    given = [(sample.ms, sample.device_bytes / _MB) for sample in profile.series if sample.device_bytes is not None]
    if given:
        axes.plot(*zip(*given, strict=True), color=_DEVICE, label="given out by the device's allocator")
    for number, phase in enumerate(profile.phases):
        # Short phases begin close to each other.
        _mark(axes, phase, number % 2)
    most = max(profile.peak_bytes, *(sample.device_bytes or 0 for sample in profile.series))
    axes.set_ylim(0, 1.08 * most / _MB)
    axes.set_xlim(0, 1.02 * max(*times, profile.phases[-1].end_ms))
    axes.set_xlabel("ms")
    axes.set_ylabel("MB")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.13), ncols=3, frameon=False, borderpad=0, borderaxespad=0)
    return figure


def _mark(axes: Axes, phase: MemoryPhase, row: int) -> None:
    """Where a phase begins, and the most that was resident in it, which may lie between two samples."""
    axes.axvline(phase.begin_ms, color=_BORDER, linewidth=0.6, zorder=0)
    axes.hlines(phase.peak_bytes / _MB, phase.begin_ms, phase.end_ms, color=_RESIDENT, linewidth=0.6)
    axes.annotate(
        phase.name,
        (phase.begin_ms, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3 + row * _ROW_POINTS),
        textcoords="offset points",
        fontsize=7,
        color=INK,
    )
