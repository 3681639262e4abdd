"""pylibmc: libmemcached as Python sees it. See contender.py.

P4b buffers its sets and wants no replies, the nearest to a pipeline that it has; what is behind
them is asked for at the end.
"""

import sys

# This file bears the client's name: the client is looked for elsewhere first.
sys.path.append(sys.path.pop(0))
sys.dont_write_bytecode = True

import contender  # noqa: E402
import pylibmc  # noqa: E402
from contender import KEYS, LARGE, check, check_large, key_of, value_of  # noqa: E402


def connect(host, port, **behaviors):
    place = host if host.startswith("/") else "%s:%d" % (host, port)
    return pylibmc.Client([place], behaviors={"tcp_nodelay": True, **behaviors})


def store(client, count, size=100):
    values = {key_of(i): value_of(i, size) for i in range(count)}
    check(client.set_multi(values) == [], "set_multi")
    return values


def get_one(host, port):
    client = connect(host, port)
    ((key, value),) = store(client, 1).items()

    def turn():
        check(client.get(key) == value, "get")
        return 1

    return turn


def get_many(host, port):
    client = connect(host, port)
    values = store(client, KEYS)
    keys = list(values)

    def turn():
        check(client.get_multi(keys) == values, "get_multi")
        return KEYS

    return turn


def set_one(host, port):
    client = connect(host, port)
    ((key, value),) = store(client, 1).items()

    def turn():
        check(client.set(key, value), "set")
        return 1

    return turn


def set_many(host, port):
    values = store(connect(host, port), KEYS)
    client = connect(host, port, _noreply=True, buffer_requests=True)
    last = key_of(KEYS - 1)

    def turn():
        check(client.set_multi(values) == [], "set_multi")
        return KEYS

    return turn, lambda: check(client.get(last) == values[last], "get")


def get_large(host, port):
    client = connect(host, port)
    ((key, value),) = store(client, 1, LARGE).items()

    def turn():
        check_large(client.get(key), value)
        return 1

    return turn


contender.run(
    {"P1": get_one, "P3": get_many, "P4a": set_one, "P4b": set_many, "P5s": get_large}
)
