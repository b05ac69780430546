"""The model against the design study's comparison of native slicing, a strict lease and the ledger.

Shape and order are held, and the figures within tolerances: the study's own model was thrown away, its noise is about
0.3 points, and some laws are sharper here (docs/compute-model.md says which). A change of a law that moves a row shows.
"""

from typing import Any

import pytest

from gpu_hook_simulator import model_run
from gpu_hook_simulator.model import scenarios
from testbed.long import long

# Sum of normalised throughputs in the study: native, strict, ledger; None: the study has no figure.
STUDY: dict[str, tuple[float | None, float, float]] = {
    "2-saturated": (0.920, 0.985, 0.987),
    "2-saturated-70-30": (0.920, 0.984, 0.984),
    "3-saturated-50-30-20": (0.920, 0.983, 0.983),
    "4-saturated": (0.918, 0.982, 0.983),
    "80us-20ms": (None, 0.96, 0.96),
    "2-gappy": (1.669, 1.993, 1.961),
    "4-gappy": (2.244, 2.314, 2.317),
    "2-launch-bound": (1.852, 1.036, 1.787),
    "2-launch-bound-70-30": (1.130, 1.027, 1.094),
    "saturated-launch-bound": (1.409, 1.049, 1.332),
    "saturated-launch-bound-70-30": (1.409, 1.051, 1.244),
    "saturated-gappy": (1.375, 1.291, 1.511),
    "2-saturated-gappy": (1.625, 1.825, 1.834),
    "4-mixed": (1.460, 1.277, 1.481),
}
NATIVE_TOLERANCE = 0.10  # absolute; it depends most on when gappy tenants start
LEDGER_BELOW, LEDGER_ABOVE = 0.015, 0.12  # it may be better than the study, and hardly worse
SATURATED = [n for n in STUDY if not any(word in n for word in ("gappy", "launch", "mixed"))]
MIXED = [n for n in STUDY if n not in SATURATED]


@pytest.fixture(scope="module", params=[1, 2] if long() else [1], ids="seed{}".format)
def table(request: pytest.FixtureRequest, kept_answers: None) -> dict[tuple[str, str], dict[str, Any]]:
    rows = model_run.run_scenarios(scenarios.TABLE, seed=request.param)
    return {(row["scenario"], row["policy"]): row for row in rows}


pytestmark = pytest.mark.slow
Table = dict[tuple[str, str], dict[str, Any]]


def test_every_row_of_the_study_is_there() -> None:
    assert set(STUDY) == {s.name for s in scenarios.TABLE}


# The saturated tenant learns its cost from the sixteen kernels that run before the other one begins. Their times vary by
# half, so what is learned is off by a tenth with some seeds, and stays so.
CHANCE = ("saturated-launch-bound", "learned")


@pytest.mark.parametrize("row", STUDY)
def test_native_slicing_is_the_studys(table: Table, row: str) -> None:
    native = STUDY[row][0]
    if native is not None:
        assert table[row, "native"]["efficiency"] == pytest.approx(native, abs=NATIVE_TOLERANCE)


@pytest.mark.parametrize("row", STUDY)
@pytest.mark.parametrize("policy", ["ledger", "learned"])
def test_ledger_is_as_efficient_as_in_the_study(table: Table, row: str, policy: str) -> None:
    efficiency = table[row, policy]["efficiency"]
    below = LEDGER_BELOW + (0.02 if (row, policy) == CHANCE else 0)
    assert STUDY[row][2] - below <= efficiency <= STUDY[row][2] + LEDGER_ABOVE


@pytest.mark.parametrize("row", SATURATED)
def test_saturated_tenants_get_their_shares(table: Table, row: str) -> None:
    for policy in ("ledger", "learned"):
        assert table[row, policy]["share_error_points"] <= 1
        assert table[row, policy]["jain"] >= 0.99
        assert table[row, policy]["efficiency"] >= table[row, "native"]["efficiency"] + 0.025


@pytest.mark.parametrize("row", MIXED)
def test_mixed_tenants_get_their_shares(table: Table, row: str) -> None:
    for policy in ("ledger", "learned"):
        assert table[row, policy]["share_error_points"] <= (5 if (row, policy) == CHANCE else 3)
        assert table[row, policy]["jain"] >= 0.99


def test_two_saturated_reach_the_budget(table: Table) -> None:
    for policy in ("ledger", "learned"):
        assert table["2-saturated", policy]["efficiency"] >= 0.97


def test_launch_bound_pairs_lose_little_against_native(table: Table) -> None:
    native = table["2-launch-bound", "native"]["efficiency"]
    for policy in ("ledger", "learned"):
        assert table["2-launch-bound", policy]["efficiency"] >= 0.95 * native


def test_a_strict_lease_collapses_where_tenants_leave_gaps(table: Table) -> None:
    for row in ("2-launch-bound", "saturated-launch-bound", "saturated-launch-bound-70-30"):
        assert table[row, "strict"]["efficiency"] < 1.1 < table[row, "ledger"]["efficiency"]
    assert table["saturated-launch-bound", "strict"]["share_error_points"] > 20


def test_native_slicing_knows_no_weights(table: Table) -> None:
    assert table["2-saturated-70-30", "native"]["share_error_points"] == pytest.approx(20, abs=1)
    assert table["3-saturated-50-30-20", "native"]["share_error_points"] == pytest.approx(16.7, abs=1)


def test_elapsed_time_is_no_measure_for_mixed_tenants(table: Table) -> None:
    for row in ("saturated-launch-bound-70-30", "4-mixed"):
        assert table[row, "split"]["share_error_points"] > table[row, "ledger"]["share_error_points"] + 2


def test_gappy_tenants_keep_their_rate_beside_saturated_ones(table: Table) -> None:
    assert table["saturated-gappy", "native"]["throughput"][1] < 0.8
    assert table["saturated-gappy", "ledger"]["throughput"][1] >= 0.88
    assert table["2-saturated-gappy", "ledger"]["throughput"][2] >= 0.95


def test_nothing_was_broken(table: Table) -> None:
    assert {key: row["violations"] for key, row in table.items() if row["violations"]} == {}
