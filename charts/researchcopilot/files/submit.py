"""`helm test`: submits a run and waits for its end. Exit code 0 only if it succeeded."""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any

URL, KEY = os.environ["API_URL"], os.environ["API_KEY"]
END = time.monotonic() + float(os.environ["TIMEOUT_SECONDS"])


def call(path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer's JSON. What cannot be reached yet is asked again; a refusal is final."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    while True:
        try:
            request = urllib.request.Request(URL + path, data, headers)
            with urllib.request.urlopen(request, timeout=40) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code not in (401, 422):
                sys.exit(f"{path}: {error.code} {error.read().decode()}")
            reason = f"{error.code} {error.read().decode()}"
        except OSError as error:
            reason = str(error)
        # 401: the key is being made; 422: no worker has announced its agents yet.
        if time.monotonic() > END:
            sys.exit(f"{URL}{path}: {reason}")
        time.sleep(1)


run = call("/v1/runs", {"agent": "echo", "input": "helm test"})
while run["status"] in ("queued", "running"):
    if time.monotonic() > END:
        sys.exit(f"run {run['run_id']} is still {run['status']}: is a worker there?")
    run = call(f"/v1/runs/{run['run_id']}?wait=10")
print(f"run {run['run_id']} {run['status']}")
sys.exit(0 if run["status"] == "succeeded" else str(run.get("error")))
