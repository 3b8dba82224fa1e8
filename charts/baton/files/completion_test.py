"""What the pod of `helm test` runs: waits until the gateway is ready, then asks for a completion of four tokens."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

GATEWAY, MODEL = os.environ["GATEWAY"], os.environ["MODEL"]
READY_SECONDS = 60


def ask(path, body=None):
    """Return the JSON that the gateway answers to a GET, or to a POST of a body."""
    headers = {"Content-Type": "application/json"}
    if "API_KEY" in os.environ:
        headers["Authorization"] = "Bearer " + os.environ["API_KEY"].strip()
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(GATEWAY + path, data, headers)
    # The certificate is made out to the name that clients use, not to that of the Service.
    context = ssl._create_unverified_context() if GATEWAY.startswith("https:") else None
    with urllib.request.urlopen(request, timeout=30, context=context) as response:
        return json.load(response)


def wait_until_ready():
    """Return when the gateway can serve the model; end the process with the cause if it cannot in time."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            return ask("/ready")
        except urllib.error.HTTPError as error:
            cause = error.read().decode()
        except OSError as error:
            cause = str(error)
        if time.monotonic() > deadline:
            sys.exit(f"not ready within {READY_SECONDS} s: {cause}")
        time.sleep(1)


wait_until_ready()
answer = ask("/v1/completions", {"model": MODEL, "prompt": "One two three", "max_tokens": 4, "ignore_eos": True})
print(json.dumps(answer))
sys.exit(0 if answer["usage"]["completion_tokens"] == 4 else "expected four tokens")
