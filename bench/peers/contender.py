"""What a contender in Python does beside its work.

    contender.run({"P1": make_turn, ...})

A program that calls it is run as PROGRAM WORKLOAD HOST PORT SECONDS. It warms up for a tenth
of SECONDS, measures for SECONDS, and prints one line of JSON; in it `answered` counts all
operations, also those that were not measured. `make_turn(host, port)` prepares and returns a
function that does a turn and returns how many operations it was; or that and a second, which
ends when all that was sent is done. Either raises where an answer is wrong.

Exit status: 0 well, 1 an error or a wrong answer, 2 bad arguments, 3 no such workload.
"""

import json
import os
import resource
import signal
import sys
import time

PATIENCE = 10  # seconds, beside those that it was to take
KEYS = 100
LARGE = 1 << 20


def key_of(index):
    """Keys are as long as everybody's here."""
    return "bench:%05d" % index


def value_of(index, size=100):
    """It begins and ends with its key."""
    key = key_of(index)
    return (key + "." * (size - 2 * len(key)) + key).encode()


def check(fine, what):
    if not fine:
        raise ValueError(what + ": a wrong answer")


def check_large(value, wanted):
    """Looks at size and ends: comparing all of it would cost more than getting it."""
    ends = value[:11] == wanted[:11] and value[-11:] == wanted[-11:]
    check(len(value) == LARGE and ends, "get")


def reading():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": time.monotonic(),
        "user": usage.ru_utime,
        "system": usage.ru_stime,
        "voluntary": usage.ru_nvcsw,
        "involuntary": usage.ru_nivcsw,
    }


def turns(turn, finish, seconds):
    stop = time.monotonic() + seconds
    operations = 0
    while time.monotonic() < stop:
        operations += turn()
    finish()
    return operations


def measure(workload, made, seconds):
    turn, finish = made if isinstance(made, tuple) else (made, lambda: None)
    warm = turns(turn, finish, seconds / 10)
    before = reading()
    operations = turns(turn, finish, seconds)
    after = reading()
    line = {"workload": workload, "operations": operations, "calls": None}
    line["answered"] = warm + operations
    line.update((name, round(after[name] - before[name], 6)) for name in after)
    print(json.dumps(line, separators=(",", ":")))


def give_up(_signal, _frame):
    raise TimeoutError("the server does not answer")


def run(workloads):
    program = os.path.basename(sys.argv[0])
    try:
        workload, host, port, seconds = sys.argv[1:]
        port, seconds = int(port), float(seconds)
        if not 0.01 <= seconds <= 600:
            raise ValueError
    except ValueError:
        print(program + ": it takes WORKLOAD HOST PORT SECONDS (0.01 to 600)", file=sys.stderr)
        sys.exit(2)
    if workload not in workloads:
        print(program + ": there is no workload " + workload, file=sys.stderr)
        sys.exit(3)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(int(seconds * 1.1) + PATIENCE)
    try:
        measure(workload, workloads[workload](host, port), seconds)
    except Exception as error:  # whatever a client raises: a figure is not printed then
        sys.exit("%s: %s: %s" % (program, type(error).__name__, error))
