"""Topic filters as sets of topics: does one cover another, do two overlap (section 4.7)."""

from __future__ import annotations


def covers(wide: str, narrow: str) -> bool:
    """Does `wide` match every topic that `narrow` matches?"""
    return _covers(wide.split("/"), narrow.split("/"), True)


def _covers(wide: list[str], narrow: list[str], first: bool) -> bool:
    if wide[:1] == ["#"]:
        return not (first and narrow[:1] and narrow[0].startswith("$"))  # [MQTT-4.7.2-1]
    if not wide or not narrow:
        return not wide and not narrow
    if narrow[0] == "#" or (narrow[0] == "+" and wide[0] != "+"):
        return False
    if wide[0] == "+":
        return not (first and narrow[0].startswith("$")) and _covers(wide[1:], narrow[1:], False)
    return wide[0] == narrow[0] and _covers(wide[1:], narrow[1:], False)


def overlaps(one: str, other: str) -> bool:
    """Is there a topic that both match?"""
    return _overlaps(one.split("/"), other.split("/"), True)


def _overlaps(one: list[str], other: list[str], first: bool) -> bool:
    if first and one[0].startswith("$") != other[0].startswith("$"):
        return False  # wildcards do not reach topics of the broker [MQTT-4.7.2-1]
    if one[:1] == ["#"] or other[:1] == ["#"]:
        return True
    if not one or not other:
        return not one and not other
    if one[0] != other[0] and "+" not in (one[0], other[0]):
        return False
    return _overlaps(one[1:], other[1:], False)
