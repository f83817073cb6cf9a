"""Runs seeds with one text of the package changed, until one breaks a promise.

A process of its own, whose only argument is JSON: file, old and new, and either plan, a text, or
first, count and minutes of seeds. It prints what has found the change and what was found, or
nothing.
"""

import importlib.machinery
import importlib.util
import json
import logging
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a module with a text changed."""

    def __init__(self, name, path, old, new):
        super().__init__(name, path)
        self._old, self._new = old, new

    def get_code(self, fullname):
        text = Path(self.path).read_text("utf-8")
        assert text.count(self._old) == 1, f"{self.path} has the text {text.count(self._old)} times"
        return compile(text.replace(self._old, self._new), self.path, "exec")


class Finder:
    """Finds one module, changed."""

    def __init__(self, name, path, old, new):
        self._name, self._path = name, path
        self._loader = Changed(name, path, old, new)

    def find_spec(self, name, path=None, target=None):
        if name == self._name:
            return importlib.util.spec_from_file_location(name, self._path, loader=self._loader)
        return None


def main():
    task = json.loads(sys.argv[1])
    logging.disable(logging.CRITICAL)
    path = ROOT / task["file"]
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    sys.meta_path.insert(0, Finder(name, str(path), task["old"], task["new"]))
    plans = importlib.import_module("rmqcore.simulation.plan")
    run = importlib.import_module("rmqcore.simulation.run").run
    assert isinstance(sys.modules[name].__loader__, Changed)
    if "plan" in task:
        drawn = [plans.Plan.from_json(task["plan"])]
    else:
        seeds = range(task["first"], task["first"] + task["count"])
        drawn = (plans.draw(seed, task["minutes"], power_cuts=True) for seed in seeds)
    for plan in drawn:
        report = run(plan)
        if report.broken:
            names = sorted({each.name for each in report.broken})
            print(json.dumps({"seed": plan.seed, "broken": names, "first": str(report.broken[0])}))
            return


if __name__ == "__main__":
    main()
