"""`jit_driver.py PROCESSES KERNELS`: processes that want the same kernels at the same moment.

Each is forked from this one, which has imported humming.jit but loaded no compiler, and prints one
line of JSON: digests of its binaries, how many log lines it wrote, seconds, and its error if any.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time

from jit_kernels import program

from humming.errors import HummingError
from humming.jit import KernelLibrary


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def work(kernels: int) -> dict[str, object]:
    lines = Lines()
    logger = logging.getLogger("humming.jit")
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    begin = time.perf_counter()
    digests, error = [], ""
    try:
        found = KernelLibrary().get_many([program(i) for i in range(kernels)], threads=2)
        digests = [hashlib.sha256(binary.data).hexdigest() for binary in found]
    except HummingError as problem:
        error = f"{type(problem).__name__}: {problem}"
    seconds = time.perf_counter() - begin
    return {"digests": digests, "log": lines.texts, "seconds": seconds, "error": error}


def main(processes: int, kernels: int) -> None:
    if processes == 1:
        print(json.dumps(work(kernels)), flush=True)
        return
    wait, go = os.pipe()
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(wait, 1)  # returns when the last writer has closed the pipe
            os.write(1, (json.dumps(work(kernels)) + "\n").encode())
            os._exit(0)
        children.append(child)
    os.close(go)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(statuses))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
