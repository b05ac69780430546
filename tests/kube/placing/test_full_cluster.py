"""Two hundred pods of odd sizes on three simulated nodes: all that fit run, and no Binding is denied."""

import random

import pytest

from oci_hook.kube.answers import admission, extender
from oci_hook.kube.placing.choose import Question, judge
from oci_hook.kube.placing.cluster_state import ClusterState
from oci_hook.kube.placing.fit import Fit
from oci_hook.kube.pod.asked import words
from tests.core import allocate_oracle as oracle
from tests.kube.cluster_objects import SIGNER, alloc_of, binding, bound, listing, node, pod

NODES = {"n1": (80_000, 80_000), "n2": (40_000, 40_000, 24_000), "n3": (16_000, 16_000, 16_000, 16_000)}
SIZES = (700, 1_300, 2_300, 3_700, 5_900, 7_100)


def odd_pod(rng, number, placement):
    kind = rng.randrange(10)
    words = {"memory": rng.choice(SIZES), "node_placement": placement}
    if kind < 3:
        words["compute"] = rng.choice((3, 7, 11))
    elif kind == 3:
        words |= {"class": "offline", "placement": "spread"}
    elif kind == 4:
        words = {"memory": "7%", "node_placement": placement}
    elif kind == 5:
        words |= {"gpus": 2}
    elif kind == 6:
        return pod(f"p{number}", containers=("a", "b"), memory__a=900, memory__b=1_700, node_placement=placement)
    return pod(f"p{number}", **words)


@pytest.mark.parametrize("placement", ["binpack", "spread"])
@pytest.mark.parametrize("seed", range(3))
def test_every_pod_that_fits_runs_and_no_binding_is_denied(placement, seed):
    rng = random.Random(seed)
    state = ClusterState(verify=SIGNER.holds)
    for name, sizes in NODES.items():
        state.apply_node(node(name, *sizes))
    alive, waiting, ran, bindings = [], [], 0, []

    def filter_(obj):
        answer = extender.filter({"Pod": obj, "NodeNames": list(NODES)}, state, 0.0)
        return answer["NodeNames"][0] if answer["NodeNames"] else None

    def bind_one():
        """Answers one of the open Bindings, in any order, before the watch shows another one."""
        nonlocal ran
        obj, name = bindings.pop(rng.randrange(len(bindings)))
        answer = admission.bind(binding(obj, name), state, 0.0, SIGNER.sign)
        assert answer["response"]["allowed"], answer
        done = bound(obj, name, alloc_of(answer))
        state.apply_pod(done)
        alive.append(done)
        ran += 1

    for number in range(200):
        obj = odd_pod(rng, number, placement)
        state.apply_pod(obj)
        name = filter_(obj)
        if name is None:
            question = Question(words(obj))
            assert not any(isinstance(judge(state, question, name), Fit) for name in NODES), "it has room somewhere"
            waiting.append(obj)
        else:
            bindings.append((obj, name))
        while len(bindings) > rng.randrange(6):
            bind_one()
    while bindings:
        bind_one()
    check(state, alive)
    # Pods end, their nodes' ledgers release them, and waiting pods get the room, until all have run.
    for _ in range(1000):
        if not waiting:
            break
        end = alive.pop(rng.randrange(len(alive)))
        state.apply_pod({**end, "status": {"phase": "Succeeded"}})
        for obj in list(waiting):
            if (name := filter_(obj)) is not None:
                waiting.remove(obj)
                bindings.append((obj, name))
                bind_one()
    assert not waiting and ran == 200
    check(state, alive)


def check(state, alive):
    """No GPU exceeds its memory; each pod counts by its decision; a restarted controller counts the same."""
    state.refresh()
    assert not state.reservations
    anew = ClusterState(verify=SIGNER.holds)
    for obj in alive:
        anew.apply_pod(obj)
    for name, sizes in NODES.items():
        anew.apply_node(node(name, *sizes, digest=listing(*(p["metadata"]["uid"] for p in alive))))
    anew.refresh()
    for name, one in state.nodes.items():
        assert anew.cut.rooms[name].spots == state.cut.rooms[name].spots
        grants = [g.replace(shares=(s,)) for g in state.grants(one) for s in g.shares]
        assert not oracle.violations(state.inventory(one), grants, one.rules)
