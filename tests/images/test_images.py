"""Each image holds what its part needs and no more, and the part runs in it as in the chart."""

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.images.engine import ROOT, TARGETS, Engine, image
from tests.support import eventually

from researchcopilot.dev.ports import free_port

# Those that need no cluster.
RUNNING = [target for target in TARGETS if target != "operator"]
PACKAGE = re.compile(r"^([a-z0-9._-]+)==", re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_says_what_it_is_and_runs_as_a_number(engine: Engine, target: str) -> None:
    config = engine.config(target)["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["/app/bin/python", "-m", "researchcopilot"]
    assert config["Cmd"] == [target]
    assert config["StopSignal"] in ("SIGTERM", "15", "")
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == f"tests-{target}"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_holds_its_own_locked_list_and_nothing_else(engine: Engine, target: str) -> None:
    code = "import importlib.metadata as m; print([d.name for d in m.distributions()])"
    there = {name.replace("_", "-").lower() for name in eval(engine.python(image(target), code))}
    locked = set(PACKAGE.findall((ROOT / f"requirements/{target}.txt").read_text()))
    assert there - {"researchcopilot"} <= {name.replace("_", "-") for name in locked}
    assert "researchcopilot" in there


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_there_to_build_with_to_borrow_rights_or_to_cache(
    engine: Engine, target: str
) -> None:
    look = (
        "command -v gcc cc make git curl wget uv;"
        "find / -xdev -type f -perm /6000 2>/dev/null;"
        "find / -xdev -name '*.whl' 2>/dev/null | grep -v -e /python-wheels/ -e /_bundled/;"
        "cd /root && ls -d .cache /tmp/* /var/cache/apt/*.bin 2>/dev/null;"
        "ls -d /build /wheels /source 2>/dev/null; true"
    )
    assert engine.run(image(target), "-c", look, user="0:0", entrypoint="sh").strip() == ""


@pytest.mark.parametrize("target", TARGETS)
def test_bytecode_is_compiled_for_every_module(engine: Engine, target: str) -> None:
    code = (
        "import importlib.util as u, pathlib;"
        "fs = list(pathlib.Path('/app/lib').rglob('*.py'));"
        "print(len(fs) > 100, [str(f) for f in fs if not pathlib.Path("
        "u.cache_from_source(str(f))).exists()][:5])"
    )
    assert engine.python(image(target), code) == "True []"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("user", ["10001:10001", "1000680000:0"])
def test_a_part_imports_without_a_network_for_any_user(
    engine: Engine, target: str, user: str
) -> None:
    """OpenShift gives each namespace user ids of its own."""
    code = f"import researchcopilot.{target}.main; print('in')"
    out = engine.run(image(target), "-c", code, user=user, entrypoint="/app/bin/python")
    assert out.strip() == "in"


def test_the_janitor_s_image_migrates_and_makes_keys(engine: Engine) -> None:
    for command in ("migrate", "keys", "ensure-key"):
        assert "usage" in engine.run(image("janitor"), command, "--help")


@pytest.mark.parametrize("target", TARGETS)
def test_every_image_can_wait_for_its_schema(engine: Engine, target: str) -> None:
    assert "--wait" in engine.run(image(target), "doctor", "--help")


def test_agents_of_one_s_own_are_one_pip_install_away(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text("async def shout(ctx, given): return given.upper()\n")
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\n"
        "setup(name='shout', version='1', py_modules=['shout'],\n"
        "      entry_points={'researchcopilot.agents': ['shout = shout:shout']})\n"
    )
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image('worker')}\nUSER 0\nCOPY . /src\n"
        "RUN pip install --quiet --no-cache-dir /src && rm -r /src\nUSER 10001:10001\n"
    )
    engine.build("", tmp_path, "localhost/researchcopilot-own:tests")
    code = (
        "from researchcopilot.agents.registry import load_agents; print('shout' in load_agents())"
    )
    assert engine.python("localhost/researchcopilot-own:tests", code) == "True"


@pytest.mark.anyio
async def test_all_parts_do_a_run_as_containers_and_stop_on_sigterm(
    engine: Engine, environment: dict[str, str]
) -> None:
    ports = {target: free_port() for target in RUNNING}
    api_port = free_port()
    common = {**environment, "RC_HEALTH_HOST": "127.0.0.1"}
    migrate = engine.start("janitor", common, "migrate", "--phase", "pre")
    assert engine.ended(migrate) == 0, engine.logs(migrate)
    keys = engine.start("janitor", common, "keys", "create", "--quiet")
    assert engine.ended(keys) == 0
    key = engine.logs(keys).strip()

    started = {}
    for target in RUNNING:
        own = {"RC_HEALTH_PORT": str(ports[target]), "RC_API_PORT": str(api_port)}
        started[target] = engine.start(target, {**common, **own})
    for target in RUNNING:
        await ready(engine, started[target], ports[target])

    assert "succeeded" in submit(f"http://127.0.0.1:{api_port}", key)

    for target in RUNNING:
        engine.kill(started[target])
    codes = {target: engine.ended(name) for target, name in started.items()}
    assert codes == dict.fromkeys(RUNNING, 0), engine.logs(started["worker"])


@pytest.mark.anyio
async def test_the_operator_says_what_it_lacks_where_there_is_no_cluster(
    engine: Engine, environment: dict[str, str]
) -> None:
    name = engine.start("operator", {**environment, "RC_HEALTH_HOST": "127.0.0.1"})
    assert engine.ended(name) == 2
    assert "There is no API server to talk to" in engine.logs(name)


def submit(url: str, key: str) -> str:
    """What the script of `helm test` says."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "charts/researchcopilot/files/submit.py")],
        env={"API_URL": url, "API_KEY": key, "TIMEOUT_SECONDS": "30"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


async def ready(engine: Engine, name: str, port: int) -> None:
    try:
        await eventually(lambda: answers(f"http://127.0.0.1:{port}/readyz"), 30)
    except AssertionError as error:
        raise AssertionError(f"{name} is not ready:\n{engine.logs(name)}") from error


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
