"""Python code in processes that have not imported lmms-eval, but everything that lmms-eval imports.

An import of lmms-eval takes six seconds, nearly all of them for other packages. One process imports those once, and
forks for each piece of code.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

_SERVER = """
import json, os, sys, traceback
import accelerate, datasets, evaluate, openai, torch, transformers
assert not [name for name in sys.modules if name.startswith("lmms_eval")]
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = 0
        try:
            os.chdir(job["path"])
            sys.path.insert(0, job["path"])
            exec(job["code"], {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class FreshImports:
    """A process that runs code in forks of itself."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output"
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
        )

    def run(self, code: str, path: Path) -> str:
        """Run code in the folder `path`, whose packages come before the installed ones; returns all that it prints."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._output.write_text("")
        self._server.stdin.write(json.dumps({"code": code, "path": str(path), "output": str(self._output)}) + "\n")
        self._server.stdin.flush()
        ended = self._server.stdout.readline().strip()
        output = self._output.read_text(errors="replace")
        assert ended == "0", output
        return output

    def close(self) -> None:
        """End the process."""
        self._server.communicate()
