"""What `baton bench two-hosts` says of its results."""

from __future__ import annotations

from bench.links.two_hosts import profile_ratios, report


def _profile(rate: float) -> dict[str, object]:
    figures = {"median": rate}
    return {
        "memory_read_bytes_per_second": figures,
        "memory_copy_bytes_per_second": figures,
        "matmul_flops": {"float32": figures},
    }


def test_two_profiles_are_compared_figure_by_figure() -> None:
    """Second over first; one alone compares with nothing."""
    ratios = profile_ratios([_profile(4.0), _profile(5.0)])

    assert set(ratios.values()) == {1.25}
    assert len(ratios) == 3
    assert profile_ratios([_profile(4.0)]) == {}


def test_the_report_has_the_link_beside_its_shape() -> None:
    """And the plans as they were printed."""
    lines = report(
        {
            "shaped_bits_per_second": 200e6,
            "link_bits_per_second": [190e6, 95e6],
            "refusal": "no",
            "found_router": "joined",
            "answer": {},
            "restarts": 1,
            "last_exit_status": -9,
            "sleep": {"stopped_seconds": 15.0, "noticed_seconds": 14.9, "is_same_worker": True, "answer": {}},
            "profiles": [],
            "plans": [{"transfer_seconds": 1.0, "table": ["a"], "nodes": ["b"]}] * 2,
        }
    )

    assert "link: 190.0 Mb/s of 200 (95.0%); halved: 95.0 Mb/s" in lines
    assert lines[-4:] == ["a", "b", "a", "b"]
