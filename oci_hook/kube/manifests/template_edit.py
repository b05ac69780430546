"""Edits a pod template: removes resources, adds annotations and the runtime class."""

import json

import yaml

from oci_hook.errors import Problem, RequestError
from oci_hook.kube.manifests import yaml_edit
from oci_hook.kube.manifests.yaml_edit import Edit, get, is_flow

RUNTIME_CLASS = "gpu-hook"


def take_out(edit: Edit, container: yaml.Node, keys: set[str], claim: str = "") -> None:
    """Removes the resources that annotations or a claim replace, and mappings that this leaves empty. claim: the pod's name of a
    claim, which is added; "" for none."""
    found = get(container, "resources")
    if found is None:
        if claim:
            put_entry(edit, container, "resources", {"claims": [{"name": claim}]})
        return
    sections = [(key, value) for key, value in yaml_edit.entries(found) if key.value in ("limits", "requests")]
    emptied = []
    for key, section in sections:
        names = [name.value for name, _ in yaml_edit.entries(section)]
        gone = [name for name in names if name in keys]
        if gone and len(gone) == len(names):
            emptied.append(key.value)
        elif gone:
            edit.remove(section, gone)
    if claim:
        put_claim(edit, found, emptied, claim)
        return
    if not emptied:
        return
    if len(emptied) < len(yaml_edit.entries(found)):
        edit.remove(found, emptied)
        return
    entry = next(entry for entry in yaml_edit.entries(container) if entry[0].value == "resources")
    if edit.alone(entry[0]):
        edit.remove(container, ["resources"])
    else:
        edit.empty(entry)


def put_claim(edit: Edit, resources: yaml.Node, emptied: list[str], claim: str) -> None:
    """Adds a claim to a container's resources, of which the sections `emptied` go."""
    if is_flow(resources) and len(emptied) == len(yaml_edit.entries(resources)):
        edit.replace(resources, json.dumps({"claims": [{"name": claim}]}))
        return
    add_to_list(edit, resources, "claims", [{"name": claim}])
    if emptied:
        edit.remove(resources, emptied)


def add_to_list(edit: Edit, mapping: yaml.Node, key: str, items: list[dict[str, str]]) -> None:
    """Adds items to the list at a key of a mapping, which may not have it yet."""
    found = get(mapping, key)
    if found is None:
        put_entry(edit, mapping, key, items)
        return
    if not isinstance(found, yaml.SequenceNode):
        why = f"line {found.start_mark.line + 1}: {key} is no list; write it as a list"
        raise RequestError(Problem("GH-107", why))
    if is_flow(found):
        at = edit.text.index("[", found.start_mark.index) + 1
        text = ", ".join(map(json.dumps, items))
        edit.change(at, at, text + (", " if found.value else ""))
    else:
        indent = " " * found.start_mark.column
        edit.insert(yaml_edit.last_line(found) + 1, [f"{indent}- {json.dumps(item)}" for item in items])


def put_entry(edit: Edit, mapping: yaml.Node, key: str, value: object) -> None:
    """Adds an entry, in flow style, before the first of a mapping; in a list's item, after that."""
    text = json.dumps(value)
    null = yaml_edit.value_of(mapping, key)
    if null is not None:
        edit.replace(null, f" {text}" if null.start_mark.index == null.end_mark.index else text)
    elif is_flow(mapping):
        edit.put_flow(mapping, [f"{json.dumps(key)}: {text}"])
    else:
        first = yaml_edit.entries(mapping)[0]
        line = f"{' ' * first[0].start_mark.column}{key}: {text}"
        edit.insert(first[0].start_mark.line if edit.alone(first[0]) else yaml_edit.end_line(first) + 1, [line])


def take_annotations(edit: Edit, template: yaml.Node, gone: list[str]) -> None:
    """Removes annotations, and their mapping if none is left."""
    metadata, found = get(template, "metadata"), get(template, "metadata", "annotations")
    if not gone or metadata is None or found is None:
        return
    if is_flow(found) or len(gone) < len(yaml_edit.entries(found)):
        edit.remove(found, gone)
    elif len(yaml_edit.entries(metadata)) > 1:
        edit.remove(metadata, ["annotations"])
    else:
        edit.empty(yaml_edit.entries(metadata)[0])


def take_runtime_class(edit: Edit, template: yaml.Node) -> str:
    """Removes the runtime class. Returns it, "" for none."""
    spec = get(template, "spec")
    there = get(spec, "runtimeClassName")
    if spec is None or there is None:
        return ""
    edit.remove(spec, ["runtimeClassName"])
    return str(there.value)


def put_annotations(edit: Edit, template: yaml.Node, new: dict[str, str], gone: list[str]) -> None:
    """Adds the annotations `new` and removes those in `gone`; metadata and annotations may be missing, empty or null."""
    metadata, found = get(template, "metadata"), get(template, "metadata", "annotations")
    for name, node in (("metadata", metadata), ("annotations", found)):
        if node is not None and not isinstance(node, yaml.MappingNode):
            why = f"line {node.start_mark.line + 1}: {name} is not a mapping; write it as lines of key: value"
            raise RequestError(Problem("GH-107", why))
    new = {key: value for key, value in new.items() if key not in yaml_edit.scalars(found)}
    if yaml_edit.entries(found):
        among(edit, found, new, gone)
    elif is_flow(template) or is_flow(metadata):
        into_flow(edit, template, new)
    elif metadata is None:
        with_metadata(edit, template, new)
    else:
        keys = yaml_edit.entries(metadata)
        indent = " " * keys[0][0].start_mark.column
        lines = in_lines(indent + "  ", new)
        empty = next((entry for entry in keys if entry[0].value == "annotations"), None)
        if empty is None:
            edit.insert(yaml_edit.end_line(keys[-1]) + 1, [f"{indent}annotations:", *lines])
        else:
            edit.replace(empty[1], "")  # null, {} or nothing at all
            edit.insert(empty[0].start_mark.line + 1, lines)


def among(edit: Edit, found: yaml.Node | None, new: dict[str, str], gone: list[str]) -> None:
    """Does so for a template that has annotations."""
    assert found is not None
    if is_flow(found) and len(gone) == len(yaml_edit.entries(found)):
        edit.replace(found, json.dumps(new))
        return
    edit.add(found, new)
    edit.remove(found, gone)


def into_flow(edit: Edit, template: yaml.Node, new: dict[str, str]) -> None:
    """Adds annotations to a template, or metadata, in flow style ({...}) without annotations."""
    metadata = yaml_edit.value_of(template, "metadata")
    found = yaml_edit.value_of(metadata, "annotations")
    whole = json.dumps({"annotations": new})
    if found is not None:
        edit.replace(found, json.dumps(new))
    elif metadata is None:
        edit.put_flow(template, [f'"metadata": {whole}'])
    elif yaml_edit.is_null(metadata):
        edit.replace(metadata, whole)
    else:
        edit.put_flow(metadata, [whole[1:-1]])


def with_metadata(edit: Edit, template: yaml.Node, new: dict[str, str]) -> None:
    """Adds annotations to a template in block style whose metadata is missing or null."""
    null = yaml_edit.value_of(template, "metadata")
    if null is not None:
        edit.replace(null, f" {json.dumps({'annotations': new})}")
        return
    key = next(key for key, _ in yaml_edit.entries(template) if key.value == "spec")
    if not edit.alone(key):
        raise RequestError(Problem("GH-107", "its template has no metadata; add `metadata: {}` first"))
    indent = " " * key.start_mark.column
    lines = [f"{indent}metadata:", f"{indent}  annotations:", *in_lines(indent + "    ", new)]
    edit.insert(key.start_mark.line, lines)


def in_lines(indent: str, new: dict[str, str]) -> list[str]:
    return [f"{indent}{yaml_edit.quoted(key)}: {yaml_edit.quoted(value)}" for key, value in new.items()]


def put_runtime_class(edit: Edit, template: yaml.Node) -> str:
    """Adds the runtime class right below `spec:`, or replaces another one. Returns the replaced class, "" for none."""
    key, spec = next(entry for entry in yaml_edit.entries(template) if entry[0].value == "spec")
    there = get(spec, "runtimeClassName")
    if there is not None:
        if there.value != RUNTIME_CLASS:
            edit.replace(there, RUNTIME_CLASS if getattr(there, "style", None) is None else f'"{RUNTIME_CLASS}"')
            return str(there.value)
    elif is_flow(spec):
        edit.put_flow(spec, [f'"runtimeClassName": "{RUNTIME_CLASS}"'])
    else:
        indent = " " * yaml_edit.entries(spec)[0][0].start_mark.column
        edit.insert(key.start_mark.line + 1, [f"{indent}runtimeClassName: {RUNTIME_CLASS}"])
    return ""
