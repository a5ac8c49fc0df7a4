"""Reads what `cargo metadata` prints, and prints the crates that become part of traceprof.

One a line, with tabs between: name and version, licence, folder.
"""

import json
import os
import sys

metadata = json.load(sys.stdin)
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
packages = {package["id"]: package for package in metadata["packages"]}
members = set(metadata["workspace_members"])
first = next(it for it in members if packages[it]["name"] == "traceprof")
seen, rest = set(), [first]
while rest:
    package = rest.pop()
    if package in seen:
        continue
    seen.add(package)
    for dependency in nodes[package]["deps"]:
        # Neither what builds it nor what tests it. Macros run in the compiler.
        is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
        targets = packages[dependency["pkg"]]["targets"]
        kinds = {kind for target in targets for kind in target["kind"]}
        if is_linked and "proc-macro" not in kinds:
            rest.append(dependency["pkg"])
# Some crates are linked in two versions.
linked = [packages[it] for it in seen - members]
for package in sorted(linked, key=lambda it: (it["name"], it["version"])):
    folder = os.path.dirname(package["manifest_path"])
    print(f"{package['name']} {package['version']}", package["license"], folder, sep="\t")
