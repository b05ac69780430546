"""Dry runs of pods that must run together agree with the filter, and leave no trace."""

import json
import random

import pytest

from oci_hook.core.rules import Rules
from oci_hook.errors import RequestError
from oci_hook.kube.answers import gang, manifest
from oci_hook.kube.answers.gang import MOST_PODS, MOST_ROLES, dry_run, roles_of
from oci_hook.kube.pod import mutate
from tests.kube.answers.test_extender import ask, cluster, running
from tests.kube.cluster_objects import node, pod

OPTIONS = mutate.WebhookOptions(Rules(dialects=("t9k", "hami", "nvidia")))


def template(containers=1, limits=None, **notes):
    annotations = {f"gpu-hook.io/{key}": str(value) for key, value in notes.items()}
    made = [{"name": f"c{n}", "resources": {"limits": limits or {}}} for n in range(containers)]
    return {"metadata": {"annotations": annotations}, "spec": {"containers": made}}


def asked(*rows, **more):
    return {"pods": [{"name": name, "count": count, "template": each} for name, count, each in rows], **more}


def run(state, *rows, nodes=None):
    return dry_run(state, roles_of(asked(*rows), OPTIONS), nodes)


def seen(state):
    """The state as the choice sees it."""
    state.refresh()
    rooms = {name: (room.spots, room.sum_mib) for name, room in state.cut.rooms.items()}
    return (
        rooms,
        dict(state.reservations),
        dict(state._tries),
        {name: dict(each.reserved) for name, each in state.nodes.items()},
    )


@pytest.mark.parametrize(("count", "fits"), [(0, 0), (1, 1), (4, 4), (5, 4), (MOST_PODS, 4)])
def test_so_many_fit_and_nothing_is_reserved(count, fits):
    state = cluster(node("a", 100, 100), node("b", 100, 100))
    before = seen(state)
    answer = run(state, ("workers", count, template(memory=60)))
    [role] = answer.roles
    assert role.fits == fits and answer.all_fit == (count == fits) and seen(state) == before
    assert (role.why is None) == answer.all_fit
    assert answer.all_fit or "GH-607: 0 of 2 nodes have room: 2 GH-201: no GPU has 60 MiB free" in str(role.why)
    assert json.loads(json.dumps(gang.as_data(answer)))["fits"] == answer.all_fit


def test_roles_are_placed_beside_each_other_and_the_large_first_where_that_helps():
    state = cluster(node("a", 100, 100))
    answer = run(state, ("small", 2, template(memory=30)), ("large", 1, template(gpus=1)), ("free", 3, template()))
    assert answer.all_fit and [role.name for role in answer.roles] == ["small", "large", "free"]
    state = cluster(node("a", 100, 100))
    spread = template(**{"memory": 30, "placement": "spread"})
    assert run(state, ("small", 2, spread), ("large", 1, template(gpus=1))).all_fit
    assert not run(state, ("small", 4, template(memory=60)), ("large", 1, template(gpus=1))).all_fit


def test_what_others_hold_and_reserve_counts_and_stays():
    state = cluster(node("a", 100), node("b", 100))
    running(state, pod("r", memory=60), "a")
    ask(state, pod("p", memory=60), "b")
    before = seen(state)
    assert not run(state, ("w", 1, template(memory=60))).all_fit and seen(state) == before
    assert run(state, ("w", 2, template(memory=40))).roles[0].placed == (("a", 1), ("b", 1))
    assert run(state, ("w", 1, template(memory=40)), nodes={"b"}).roles[0].placed == (("b", 1),)
    assert not run(state, ("w", 1, template(memory=40)), nodes=set()).all_fit


def test_words_of_other_systems_and_wrong_words():
    state = cluster(node("a", 100))
    assert run(state, ("w", 1, template(limits={"nvidia.com/gpumem": "50", "nvidia.com/gpu": "1"}))).all_fit
    answer = run(state, ("w", 2, template(memory="lots")), ("fine", 1, template(memory=50)))
    assert answer.roles[0].why.code == "GH-101" and answer.roles[1].fits == 1 and not answer.all_fit


def test_a_number_in_place_of_a_text_is_said():
    [role] = run(
        cluster(node("a", 100)),
        ("w", 1, template(memory=60) | {"metadata": {"annotations": {"gpu-hook.io/compute": 30}}}),
    ).roles
    assert str(role.why).startswith("GH-101: container") and "put it in quotes" in str(role.why)


def test_the_time_is_bounded_and_nothing_stays_then():
    state = cluster(node("a", 100))
    before = seen(state)
    left = iter([False, False, True])
    answer = dry_run(state, roles_of(asked(("w", 5, template(memory=10))), OPTIONS), None, lambda: next(left))
    assert answer.roles[0].fits == 2 and answer.roles[0].why == gang.TOO_LONG and seen(state) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"pods": 7},
        {"pods": [{}]},
        {"pods": [{"template": 1}]},
        {"pods": [{"template": {"spec": {"containers": [{}]}}}]},
        asked(("w", -1, template())),
        asked(("w", True, template())),
        asked(("w", "2", template())),
        asked(("w", MOST_PODS + 1, template())),
        asked(*[("w", 0, template())] * (MOST_ROLES + 1)),
        asked(("w", MOST_PODS, template()), ("x", 1, template())),
    ],
)
def test_what_is_no_question_is_refused(wrong):
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        roles_of(wrong, OPTIONS)


@pytest.mark.parametrize("seed", range(20))
def test_it_says_what_the_filter_would_do_for_one_after_the_other(seed):
    chance = random.Random(seed)
    nodes = [node(name, *[100] * chance.choice((1, 2, 4))) for name in "abc"]
    rows = [(f"r{i}", chance.randint(1, 6), chance.choice((10, 35, 60, 100))) for i in range(chance.randint(1, 3))]
    state = cluster(*nodes)
    answer = run(state, *[(name, count, template(memory=size)) for name, count, size in rows])
    real, missing = cluster(*nodes), 0
    for name, count, size in rows:
        for n in range(count):
            missing += not ask(real, pod(f"{name}-{n}", memory=size), *"abc")["NodeNames"]
    assert answer.all_fit or missing
    assert sum(role.count - role.fits for role in answer.roles) <= missing or not answer.all_fit


# --- manifests


SPEC = "{metadata: {annotations: {gpu-hook.io/memory: '10'}}, spec: {containers: [{name: main}]}}"
JOB = "{parallelism: 3, completions: 2, template: SPEC}"


def of(text):
    """A manifest of this text, with a template for SPEC."""
    return text.replace("JOB", JOB).replace("SPEC", SPEC)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{kind: Pod, metadata: {name: p}, spec: {containers: [{name: main}]}}", [("p", 1)]),
        (of("{kind: Deployment, metadata: {name: d}, spec: {replicas: 0, template: SPEC}}"), [("d", 0)]),
        (of("{kind: StatefulSet, metadata: {name: d}, spec: {template: SPEC}}"), [("d", 1)]),
        (of("{kind: Job, metadata: {name: j}, spec: JOB}"), [("j", 2)]),
        (of("{kind: Job, metadata: {name: j}, spec: {parallelism: 3, template: SPEC}}"), [("j", 3)]),
        (of("{kind: CronJob, metadata: {name: j}, spec: {jobTemplate: {spec: JOB}}}"), [("j", 2)]),
        (of("{kind: Service}\n---\n{kind: Deployment, spec: {template: SPEC}}\n---\n"), [("deployment", 1)]),
        (of("{kind: List, items: [{kind: Deployment, metadata: {name: d}, spec: {template: SPEC}}]}"), [("d", 1)]),
    ],
)
def test_the_pods_of_a_manifest(text, parts):
    assert [(role.name, role.count) for role in manifest.roles(text, OPTIONS)] == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---",
        "7",
        "[",
        "{kind: Service}",
        "{kind: PodGroup, spec: {minMember: 3}}",
        of("{kind: Job, spec: {tasks: [{name: ps, template: SPEC}]}}"),
        "{kind: Deployment}",
        of("{kind: Deployment, spec: {replicas: -1, template: SPEC}}"),
        of("{kind: Deployment, spec: {replicas: many, template: SPEC}}"),
        of("{kind: Deployment, spec: {replicas: 99999, template: SPEC}}"),
        "{kind: Deployment, spec: {template: {spec: {containers: 3}}}}",
        "&a {kind: List, items: [*a]}",
        "#" * (manifest.MAX_SIZE + 1),
        "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: 2001-13-45}]}}" + "\n\x00",
    ],
)
def test_what_is_no_manifest_is_refused_in_one_line(text):
    with pytest.raises(RequestError) as refused:
        manifest.roles(text, OPTIONS)
    assert refused.value.problems[0].code == "GH-107" and "\n" not in str(refused.value)
