"""Reads gcovr's JSON and says how much is covered; exit 1 when a file with a floor is below it."""

import collections
import fnmatch
import json
import os
import re
import subprocess
import sys

# The code that moves memory under a running model: what is not tested here is found by a user.
FLOORS = {"src/kv/growth*.cc": 95.0, "src/memory/mapping_table*.cc": 95.0}


def lines_by_file(path):
    """file -> {line: was it executed}. A line in several template instances counts once."""
    files = {}
    with open(path, encoding="utf-8") as source:
        for entry in json.load(source)["files"]:
            hits = collections.defaultdict(bool)
            for line in entry["lines"]:
                if not line.get("gcovr/noncode") and not line.get("gcovr/excluded"):
                    hits[line["line_number"]] |= line["count"] > 0
            files[entry["file"]] = dict(hits)
    return files


def share(hits):
    return 100.0 * sum(hits) / len(hits) if hits else None


def changed_lines():
    """file -> lines that differ from COVERAGE_BASE, else the merge base with origin/main, else the last commit."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)

    head = git("rev-parse", "HEAD").stdout.strip()
    base = os.environ.get("COVERAGE_BASE") or git("merge-base", "HEAD", "origin/main").stdout.strip()
    if not base or base == head:
        base = git("rev-parse", "-q", "--verify", "HEAD~1").stdout.strip()
    if not base:
        return {}
    changed, file = collections.defaultdict(set), None
    for line in git("diff", "-U0", "--no-color", base, "--", "src").stdout.splitlines():
        if line.startswith("+++ "):
            file = line[6:] if line.startswith("+++ b/") else None
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            start, count = int(match[1]), int(match[2] or 1)
            changed[file].update(range(start, start + count))
    return changed


def main():
    files = lines_by_file(sys.argv[1])
    if not files:
        sys.exit("coverage: gcovr saw no source file")

    layers = collections.defaultdict(list)
    for name, hits in files.items():
        layers[name.split("/")[1]] += hits.values()
    for layer, hits in sorted(layers.items()):
        print(f"coverage: {layer:10} {share(hits):5.1f} % of {len(hits)} lines")
    everything = [hit for hits in layers.values() for hit in hits]
    print(f"coverage: project    {share(everything):5.1f} % of {len(everything)} lines")

    changed = changed_lines()
    touched = [hit for name, hits in files.items() for line, hit in hits.items() if line in changed.get(name, ())]
    if touched:
        print(f"coverage: changed    {share(touched):5.1f} % of {len(touched)} lines")

    below = False
    for pattern, floor in FLOORS.items():
        names = sorted(fnmatch.filter(files, pattern))
        if not names:
            print(f"coverage: {pattern}: no such file was seen, and it has a floor of {floor} %")
            below = True
        for name in names:
            got = share(files[name].values())
            if got is None:
                continue
            verdict = "" if got >= floor else f" BELOW the floor of {floor} %, lines not reached: " + ", ".join(
                str(line) for line, hit in sorted(files[name].items()) if not hit)
            print(f"coverage: {name}: {got:.1f} %{verdict}")
            below |= got < floor
    sys.exit(1 if below else 0)


if __name__ == "__main__":
    main()
