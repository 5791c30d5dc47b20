"""Runs `jevcompat` against a Laneway server: conformance.py ADDRESS [API_KEY] [WAIVED…].

Prints a line for each requirement. One that is broken, whether a MUST or a SHOULD, fails, and so does a MUST left
untested. WAIVED are the names of SHOULDs that may be broken; an empty API_KEY means none.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ADDRESS = sys.argv[1]
KEY = ["--key", sys.argv[2]] if len(sys.argv) > 2 and sys.argv[2] else []
WAIVED = sys.argv[3:]
# With a key, and without one, the other of these cannot be tested.
UNTESTED = {"auth.ignored-when-off"} if KEY else {"auth.bearer"}

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "report.json"
    program = Path(sys.executable).with_name("jevcompat")
    ended = subprocess.run(
        [program, "test", ADDRESS, *KEY, "--evidence", "5", "--json", path], stdout=subprocess.PIPE, text=True
    )
    if not path.exists():
        sys.exit(f"not ok jevcompat\n{ended.stdout}")
    report = json.loads(path.read_text())

failed = [error for _, error in report["case_errors"]] + report["inconclusive"]
if report["aborted"]:
    failed.append(report["aborted"])
for result in report["results"]:
    name = f"{result['level']} {result['id']}"
    if result["status"] == "pass":
        print("ok", name)
    elif result["level"] == "SHOULD" and result["id"] in WAIVED:
        print("waived", name)
    elif result["status"] == "fail" or (result["level"] == "MUST" and result["id"] not in UNTESTED):
        print("not ok", name, result["reason"])
        failed.append(name)
    else:
        print("skipped", name, result["reason"])
if failed or ended.returncode:
    print(ended.stdout)
    sys.exit(f"jevcompat ended with {ended.returncode}: {', '.join(failed)}")
print(f"{len(report['exchanges'])} requests in {report['seconds']} s with jevcompat {report['tool_version']}")
