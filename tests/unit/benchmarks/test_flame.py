"""From samples of perf to boxes."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from benchmarks.flame import Box, readable, stacks, svg

SCRIPT = """headrace 4711 100.5:     250000 cpu-clock:
\t    7f00 CPyDef_broker___Broker___end_tick+0x1d (/x/headrace__mypyc.so)
\t    5500 uv_run (/x/loop.so)
\tffffffff [unknown] ([unknown])

headrace 4711 100.6:     250000 cpu-clock:
\t    7f01 [unknown] (/x/libc.so.6)
\t    5500 uv_run (/x/loop.so)
"""


def test_stacks_begin_with_the_caller_of_all() -> None:
    found = list(stacks(SCRIPT.splitlines(keepends=True)))
    assert found == [["uv_run", "broker.Broker.end_tick"], ["uv_run", "[libc.so.6]"]]


def test_names_of_mypyc_are_read_as_python() -> None:
    assert readable("CPyPy_codec___encode_puback", "x.so") == "codec.encode_puback"
    assert readable("_PyEval_EvalFrameDefault", "python3.11") == "_PyEval_EvalFrameDefault"


def test_a_box_is_as_wide_as_its_share() -> None:
    root = Box("all")
    for stack in stacks(SCRIPT.splitlines()):
        root.add(stack)
    drawn = ET.fromstring(svg(root))
    space = "{http://www.w3.org/2000/svg}"
    widths = {
        group.findtext(f"{space}title", "").split(":")[0]: float(rect.attrib["width"])
        for group in drawn.iter(f"{space}g")
        for rect in group.iter(f"{space}rect")
    }
    assert widths["all"] == widths["uv_run"] == 2 * widths["broker.Broker.end_tick"]
