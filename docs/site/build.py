"""Builds the site of the documentation from the pages, here and elsewhere, and what the program says of itself.

Run from the root of the repository: ``python docs/site/build.py [FOLDER]``. It stops at a link that leads nowhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import cbs
from cbs.registry.commands import command_modules

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "docs" / "site" / "zensical.toml"
ELSEWHERE = {
    "results-folder.md": "results/README.md",
    "atlas.md": "extensions/papers/atlas/README.md",
    "tables.md": "benchmarks/tables.md",
}
"""Pages of the site that lie beside what they are about."""
WIDTH = 100
"""Characters of a line of the program's output."""


PUBLIC = (
    *(f"{home}.{name}" for name, home in cbs._HOMES.items()),
    "cbs.workloads.base.Workload",
    "cbs.workloads.streams.RandomExamples",
    "cbs.noise_scale.meter.NoiseScaleMeter",
    "cbs.noise_scale.averages.Estimate",
    "cbs.optimizers.merit.MERIT",
    "cbs.optimizers.lamb.LAMB",
    "extensions.conformance.subjects",
    "sweeps.spec.spec.Sweep",
    "sweeps.launching.loop.run_sweep",
    "analysis.questions.analyze.critical_batch_sizes.analyze",
    "analysis.present.findings.Analysis",
)
"""What Python users import, in the order of the page."""


def pages(draft: Path) -> None:
    """Everything that the site is built from, as files in ``draft/docs``."""
    sources = draft / "docs"
    shutil.copytree(ROOT / "docs", sources, ignore=shutil.ignore_patterns("site", "*.pyc", "__pycache__"))
    for name, path in ELSEWHERE.items():
        text = (ROOT / path).read_text()
        (sources / name).write_text(re.sub(r"\]\((\.\./)+docs/", "](", text))
        for page in sources.glob("*.md"):
            page.write_text(page.read_text().replace(f"](../{path}", f"]({name}"))
    settings = sources / "settings.md"
    settings.write_text(
        f"{settings.read_text()}\n## All keys\n\nThe defaults are those of the recipe `default`. "
        f"A key with `...` has to be given.\n\n{printed('explain', '--settings')}"
    )
    (sources / "commands.md").write_text("# Commands\n\n" + "\n".join(map(command_help, sorted(command_modules()))))
    (sources / "python.md").write_text("# Python\n\n" + "\n".join(f"::: {name}\n" for name in PUBLIC))
    shutil.copy(CONFIG, draft / "zensical.toml")
    for file in ("site.css", "site.js"):
        shutil.copy(CONFIG.parent / file, sources / file)
    for package in ("cbs", "sweeps", "analysis", "extensions"):
        (draft / package).symlink_to(ROOT / package)


def command_help(name: str) -> str:
    """Help of a command, and of the commands of a group."""
    text = f"## cbs {name}\n\n{printed(name, '--help')}"
    if "--help-all" in text:
        text = f"## cbs {name}\n\n{printed(name, '--help-all')}"
    listed = re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE)
    members = re.findall(r"^  (\S+)", listed[1], re.MULTILINE) if listed else []
    return text + "".join(f"\n### cbs {name} {member}\n\n{printed(name, member, '--help')}" for member in members)


def printed(*arguments: str) -> str:
    """What a command prints, as a block."""
    answer = subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": str(WIDTH), "PATH": ""},
    )
    lines = [line.rstrip() for line in answer.stdout.splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def main(folder: Path) -> int:
    """Build; returns the exit code."""
    if folder.exists():
        shutil.rmtree(folder)
    pages(folder)
    return subprocess.run([str(Path(sys.executable).parent / "zensical"), "build", "--strict"], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main(ROOT / "build" / "site" if len(sys.argv) < 2 else Path(sys.argv[1])))
