"""What JUnit XML may hold: the schema `junit-10.xsd` of Jenkins' xunit plugin.

The junit-xml package writes a few attributes more (`disabled`), and characters that XML lacks go through it.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from iree_gauntlet.cleaning import clean

__all__ = ["schema_document"]

_ALLOWED = {
    "testsuites": frozenset({"name", "time", "tests", "failures", "errors"}),
    "testsuite": frozenset(
        {
            *("name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname"),
            *("id", "package", "file", "log", "url"),
        }
    ),
    "testcase": frozenset({"name", "time", "classname", "group"}),
}


def schema_document(root: ET.Element) -> str:
    """The whole document with its XML declaration, without what the schema lacks; encode it as UTF-8."""
    for element in root.iter():
        allowed = _ALLOWED.get(element.tag)
        attributes = element.attrib
        for name in list(attributes):
            if allowed is not None and name not in allowed:
                del attributes[name]
            else:
                attributes[name] = clean(attributes[name])
        element.text = clean(element.text) or None if element.text else None
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
