"""Where in a pod template the changes go: resources out, annotations and the runtime class in."""

import json

import yaml

from oci_hook.errors import Problem, RequestError
from oci_hook.kube import yaml_edit
from oci_hook.kube.yaml_edit import Edit, get

RUNTIME_CLASS = "gpu-hook"


def take_out(edit: Edit, container: yaml.Node, keys: set[str]) -> None:
    """The resources that are said in annotations now, and what they leave empty."""
    found = get(container, "resources")
    if found is None:
        return
    sections = [(key, value) for key, value in yaml_edit.entries(found) if key.value in ("limits", "requests")]
    emptied = []
    for key, section in sections:
        said = [name.value for name, _ in yaml_edit.entries(section)]
        gone = [name for name in said if name in keys]
        if gone and len(gone) == len(said):
            emptied.append(key.value)
        elif gone:
            edit.remove(section, gone)
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


def put_annotations(edit: Edit, template: yaml.Node, new: dict[str, str], gone: list[str]) -> None:
    metadata, found = get(template, "metadata"), get(template, "metadata", "annotations")
    new = {key: value for key, value in new.items() if key not in yaml_edit.scalars(found)}
    if found is not None and yaml_edit.entries(found):
        edit.add(found, new)
        if gone:
            if getattr(found, "flow_style", False) and len(gone) == len(yaml_edit.entries(found)):
                edit.changes = {place: text for place, text in edit.changes.items() if not inside(place, found)}
                said = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in new.items())
                edit.replace(found, "{" + said + "}")
            else:
                edit.remove(found, gone)
        return
    block = not getattr(template, "flow_style", False)
    if not block:
        if found is not None:
            edit.replace(found, json.dumps(new))
        elif metadata is not None:
            edit.put_flow(metadata, [f'"annotations": {json.dumps(new)}'])
        else:
            edit.put_flow(template, [f'"metadata": {json.dumps({"annotations": new})}'])
        return
    if metadata is None:
        named = next((entry for entry in yaml_edit.entries(template) if entry[0].value == "metadata"), None)
        if named is not None:
            edit.replace(named[1], f" {json.dumps({'annotations': new})}")
            return
        key = next(key for key, _ in yaml_edit.entries(template) if key.value == "spec")
        if not edit.alone(key):
            raise RequestError(Problem("GH-107", "its template has no metadata; write an empty one first"))
        indent = " " * key.start_mark.column
        lines = [f"{indent}metadata:", f"{indent}  annotations:", *in_lines(indent + "    ", new)]
        edit.insert(key.start_mark.line, lines)
        return
    if getattr(metadata, "flow_style", False):
        if found is not None:
            edit.replace(found, json.dumps(new))
        else:
            edit.put_flow(metadata, [f'"annotations": {json.dumps(new)}'])
        return
    keys = yaml_edit.entries(metadata)
    indent = " " * keys[0][0].start_mark.column
    empty = next((entry for entry in keys if entry[0].value == "annotations"), None)
    if empty is not None:
        edit.replace(empty[1], "")  # null, {} or nothing at all
        edit.insert(empty[0].start_mark.line + 1, in_lines(indent + "  ", new))
        return
    edit.insert(yaml_edit.end_line(keys[-1]) + 1, [f"{indent}annotations:", *in_lines(indent + "  ", new)])


def inside(place: tuple[int, int], node: yaml.Node) -> bool:
    return bool(node.start_mark.index <= place[0] and place[1] <= node.end_mark.index)


def in_lines(indent: str, new: dict[str, str]) -> list[str]:
    return [f"{indent}{yaml_edit.quoted(key)}: {yaml_edit.quoted(value)}" for key, value in new.items()]


def put_runtime_class(edit: Edit, template: yaml.Node) -> str:
    """Right below `spec:`, or in the place of another class, which is then returned."""
    key, spec = next(entry for entry in yaml_edit.entries(template) if entry[0].value == "spec")
    there = get(spec, "runtimeClassName")
    if there is not None:
        if there.value != RUNTIME_CLASS:
            edit.replace(there, RUNTIME_CLASS if getattr(there, "style", None) is None else f'"{RUNTIME_CLASS}"')
            return str(there.value)
    elif getattr(spec, "flow_style", False):
        edit.put_flow(spec, [f'"runtimeClassName": "{RUNTIME_CLASS}"'])
    else:
        indent = " " * yaml_edit.entries(spec)[0][0].start_mark.column
        edit.insert(key.start_mark.line + 1, [f"{indent}runtimeClassName: {RUNTIME_CLASS}"])
    return ""
