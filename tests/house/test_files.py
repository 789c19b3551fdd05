"""Rules of the house that a machine can keep: sizes, no addresses, no paths of one machine."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sorted(
    path for folder in ("services", "tests", "bench") for path in (ROOT / folder).rglob("*.py")
)
TEXTS = {"", ".md", ".py", ".sql", ".lua", ".toml", ".txt", ".yaml", ".yml"}
LINES = 400
FUNCTION_LINES = 50


def test_no_file_grows_past_its_noun() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in PYTHON}
    assert {path: lines for path, lines in sizes.items() if lines > LINES} == {}


def test_no_function_does_two_things() -> None:
    long = []
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name} {lines}")
    assert long == []


def test_every_room_opens_with_prose() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for path in PYTHON
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert bare == []


@pytest.mark.parametrize(
    "name", ["api", "worker", "scheduler", "janitor", "operator", "dev", "test", "helm"]
)
def test_a_lock_has_hashes_and_no_address(name: str) -> None:
    text = (ROOT / f"requirements/{name}.txt").read_text()
    assert "://" not in text
    assert "index-url" not in text
    packages = re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE)
    least = 2 if name == "helm" else 4
    assert len(packages) == len(set(packages)) >= least
    assert text.count("==") <= text.count("--hash=sha256:")


def test_the_containers_of_scheduler_and_janitor_need_the_core_alone() -> None:
    for name in ("scheduler", "janitor"):
        text = (ROOT / f"requirements/{name}.txt").read_text()
        for package in ("starlette", "uvicorn", "tantivy", "kopf"):
            assert f"\n{package}==" not in "\n" + text


def test_what_is_committed_names_no_place_of_one_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    home = re.compile(r"/(?:home|root)/[\w.]|/work" + r"/main|" + "pypi" + r"\.org|files\.python")
    found = []
    for path in (ROOT / name for name in tracked if name):
        if path.is_file() and path.suffix in TEXTS:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [f"{path.name}: {line.strip()[:80]}" for line in lines if home.search(line)]
    assert found == []
