"""The picture is one file that needs nothing else, and shows what was seen."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from relevo.testing.arrivals import Arrival
from relevo.testing.drills.scene import Mark
from relevo.testing.picture import BUCKETS_MAX, nice_top, page, panel_of


def arrivals(count: int, every_ms: float) -> list[tuple[int, Arrival]]:
    times = [10_000.0 + number * every_ms for number in range(count)]
    return [(0, Arrival(at / 1000, at, 1, 1, at - 7.0, f"k{at}")) for at in times]


def test_rates_and_latencies_come_out_as_they_went_in() -> None:
    panel = panel_of("leader-kill", arrivals(400, 10.0), {}, [Mark(11_000.0, "kill -9 node-1")])
    assert panel.bucket_s == 0.25
    assert panel.handed_out[0] == pytest.approx(100.0)
    assert panel.latency_p50[0] == pytest.approx(7.0)
    assert panel.marks == [(1.0, "kill -9 node-1")]


def test_a_time_without_activations_is_a_hole_and_not_a_latency_of_nothing() -> None:
    seen = [*arrivals(10, 10.0), (0, Arrival(20.0, 20_000.0, 2, 1, 12_000.0, "late"))]
    panel = panel_of("leader-kill", seen, {}, [])
    assert None in panel.latency_p50
    assert panel.latency_max[-1] == 8_000.0


def test_a_long_soak_has_no_more_points_than_a_short_drill() -> None:
    panel = panel_of("soak", arrivals(2_000, 1_000.0), {}, [])
    assert len(panel.handed_out) <= BUCKETS_MAX + 1


@pytest.mark.parametrize("count", [0, 1, 50])
def test_it_is_one_well_formed_file_without_scripts(count: int) -> None:
    """It is opened years later, on a machine without a network."""
    panel = panel_of("a <drill>", arrivals(count, 10.0), {"k": 10_050.0}, [Mark(10_100.0, "kill & <more>")])
    text = page("Drills", "on 2 cores", [panel])
    assert "<script" not in text
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    assert "a <drill>" not in text
    for number in range(text.count("<svg")):
        diagram = text.split("<svg")[number + 1].partition("</svg>")[0]
        ElementTree.fromstring(f"<svg{diagram}</svg>")


def test_nothing_measured_is_said() -> None:
    assert "Nothing was measured" in page("Drills", "", [])


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (1, 1), (1.2, 2), (3, 5), (7, 10), (120, 200), (1000, 1000)]
)
def test_axes_end_at_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)
