"""The `matrix_shapes` of an entry: sets by name with their powers, and shapes that are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.micro.registry import CUSTOM, HIGHEST_POWER
from iree_gauntlet.micro.shapes import Shape, custom_shapes, shapes_of
from iree_gauntlet.micro.yaml_fields import Fields, kind_of

if TYPE_CHECKING:
    from iree_gauntlet.micro.lookup import Registry
    from iree_gauntlet.micro.registry import ShapeSet
    from iree_gauntlet.micro.yaml_values import Value

__all__ = ["read_shapes"]

_MOST = 2**31 - 1
# Of a model that is asked for without shapes: 128 tokens, and its own sizes.
_OWN_SIZES = Shape("config", 128, 0, 0)
_EXAMPLE = "Such as - name: pow2, or - name: custom with shapes: [[1024, 1024, 1024]]."


def read_shapes(fields: Fields, registry: Registry, *, sizes_known: bool) -> tuple[Shape, ...]:
    """The shapes of an entry, in its order; what is wrong is noted in the report of the fields.

    Args:
        fields: of the entry.
        registry: the sets that it may name.
        sizes_known: whether the model's own configuration says them: then k and n may be 0, which stands for those,
            and shapes may be left out.

    Raises:
        PluginError: the function of a set fails.
    """
    if fields.take("matrix_shapes") is None and sizes_known:
        return (_OWN_SIZES,)
    needed = "nothing says which shapes are measured"
    listed: list[tuple[int, int, int]] = []
    shapes: list[Shape] = []
    for path, entry in fields.items("matrix_shapes", "sets of shapes", needed=needed, hint=_EXAMPLE):
        asked = Fields(entry, path, fields.report)
        if not asked.usable:
            continue
        name = asked.text("name", "")
        if name == CUSTOM:
            before = len(listed)
            listed += _listed(asked, 0 if sizes_known else 1)
            shapes += custom_shapes(listed)[before:]
            asked.finish()
        elif not name:
            asked.add("name", "it is missing: nothing says which set is meant", _EXAMPLE)
        else:
            found = fields.report.asked(asked.line_of("name"), asked.path("name"), registry.shapes, name)
            if found is not None:
                shapes += _of_set(asked, found)
                asked.finish()
    return tuple(shapes)


def _of_set(asked: Fields, found: ShapeSet) -> tuple[Shape, ...]:
    if found.powers is None:
        return shapes_of(found)
    least = asked.whole("min_power", 0, HIGHEST_POWER)
    most = asked.whole("max_power", 0, HIGHEST_POWER)
    low = found.powers[0] if least is None else least
    high = found.powers[1] if most is None else most
    if low > high:
        name = "max_power" if least is None else "min_power"
        default = " (its default)" if least is None or most is None else ""
        asked.add(name, f"min_power {low} is above max_power {high}{default}", "Give both.")
        return ()
    return shapes_of(found, low, high)


def _listed(asked: Fields, least: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    needed = f"{CUSTOM} are the shapes that are listed"
    for path, value in asked.items("shapes", "[m, k, n]", needed=needed, hint=_EXAMPLE):
        sizes = _sizes(value, least)
        if sizes is None:
            zero = "; k and n may be 0, for the model's own" if least == 0 else ""
            message = f"expected [m, k, n], three whole numbers from 1 to {_MOST:,}{zero}, found {_written(value)}"
            asked.report.add(value.line, path, message)
        else:
            found.append(sizes)
    return found


def _sizes(value: Value, least: int) -> tuple[int, int, int] | None:
    if not isinstance(value.content, tuple) or len(value.content) != 3:
        return None
    m = Fields.whole_of(value.content[0], 1, _MOST)
    k, n = (Fields.whole_of(item, least, _MOST) for item in value.content[1:])
    return None if m is None or k is None or n is None else (m, k, n)


def _written(value: Value) -> str:
    if isinstance(value.content, tuple) and len(value.content) <= 6:
        return f"[{', '.join(item.written or kind_of(item) for item in value.content)}]"
    return f"a list of {len(value.content)}" if isinstance(value.content, tuple) else kind_of(value)
