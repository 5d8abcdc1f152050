#!/usr/bin/env python3
"""A worker in Python, standard library alone. WINDLASS_TOKEN=… worker.py http://127.0.0.1:7878"""
import json, os, sys, threading, time, urllib.error, urllib.request, uuid

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7878"
WORKER = f"python-{uuid.uuid4()}"
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('WINDLASS_TOKEN', '')}"}

def call(path, body):
    request = urllib.request.Request(f"{URL}/v1/{path}", json.dumps(body).encode(), HEADERS)
    while True:  # A call whose answer was lost is made again: that does no harm.
        try:
            with urllib.request.urlopen(request, timeout=40) as answer:
                return json.loads(answer.read() or "{}")
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError) and not json.load(error).get("retryable"):
                raise
            time.sleep(1)

def hello(payload):
    return {"hello": payload["name"]}

def work(job):
    over = threading.Event()
    def say_alive():
        while not over.wait(10):
            call("heartbeat", {"worker": WORKER, "leases": [job["lease"]]})
    threading.Thread(target=say_alive, daemon=True).start()
    try:
        result = {"outcome": "ok", "value": HANDLERS[job["kind"]](job["payload"])}
    except Exception as error:
        result = {"outcome": "retry", "error": repr(error)}
    over.set()
    call("finish", {"results": [{"lease": job["lease"], **result}]})

HANDLERS, answer = {"hello": hello}, {}
while not answer.get("drain"):
    answer = call("lease", {"worker": WORKER, "request_id": str(uuid.uuid4()), "kinds": [*HANDLERS], "wait": "20s"})
    for job in answer.get("jobs", []):
        work(job)
