"""A pod counts on each GPU with the peak of its phases."""

from hypothesis import given
from hypothesis import strategies as st

from oci_hook.kube.pod.asked import INIT, RUN, SIDECAR
from oci_hook.kube.pod.peaks import Row, containers, together

flag = st.booleans()
word = st.sampled_from(["", "default/web"])
limited = st.builds(
    Row, st.sampled_from("ab"), st.integers(1, 9), st.integers(0, 9), st.just(False), st.just(False), flag, word
)
whole = st.builds(Row, st.sampled_from("ab"), st.just(0), st.just(0), st.just(True), flag, flag, word)
parts = st.lists(
    st.tuples(st.sampled_from([INIT, SIDECAR]), st.lists(limited | whole, max_size=2).map(tuple)), max_size=4
)
running = st.lists(st.tuples(st.just(RUN), st.lists(limited | whole, max_size=2).map(tuple)), min_size=1, max_size=2)


def phases(pod):
    """The rows of containers that run together: during each init container, and at the end."""
    before = []
    for kind, rows in pod:
        if kind == INIT:
            yield [*before, *rows]
        elif kind == SIDECAR:
            before += rows
    yield [row for kind, rows in pod if kind != INIT for row in rows]


def taken(rows, uuid):
    there = [row for row in rows if row.uuid == uuid]
    compute = [sum(r.compute for r in there if r.offline == offline) for offline in (False, True)]
    return sum(r.memory_mib for r in there), *compute, containers(there)


@given(parts, running)
def test_the_rows_are_the_largest_of_the_phases(init, stays):
    pod = [*init, *stays]
    rows = together(pod)
    for uuid in "ab":
        most = tuple(map(max, zip(*(taken(phase, uuid) for phase in phases(pod)), strict=True)))
        assert taken(rows, uuid) == most
        of = [row for phase in phases(pod) for row in phase if row.uuid == uuid]
        mine = [row for row in rows if row.uuid == uuid]
        assert any(row.whole for row in mine) == any(row.whole for row in of)
        assert any(row.apart for row in mine) == any(row.apart for row in of)
        if any(row.alone for row in of):
            assert any(row.alone for row in mine)


def test_a_gpu_that_one_phase_has_whole_and_another_one_shares_is_the_pods_alone():
    rows = together([(INIT, (Row("a", 0, 0, True, False),)), (RUN, (Row("a", 5, 0, False, False),))])
    assert any(row.alone for row in rows)


def test_a_pod_without_init_containers_counts_as_it_is():
    rows = (Row("a", 1, 2, False, False), Row("a", 3, 4, False, False))
    assert together([(RUN, rows[:1]), (SIDECAR, rows[1:])]) == rows
    assert together([]) == ()
