"""pymemcache: the client in Python alone. See contender.py.

P4b sends a hundred sets at once and wants no replies, as set_many does by default; the last of
them is asked for at the end. The rows of Dalli's benchmark have its keys and its order; the
value, an empty list, is pickled, or Ruby's four bytes where the row is raw.
"""

import sys

# This file bears the client's name: the client is looked for elsewhere first.
sys.path.append(sys.path.pop(0))
sys.dont_write_bytecode = True

import contender  # noqa: E402
from contender import KEYS, LARGE, check, check_large, key_of, value_of  # noqa: E402
from pymemcache import serde  # noqa: E402
from pymemcache.client.base import Client  # noqa: E402


def connect(host, port, **options):
    place = host if host.startswith("/") else (host, port)
    return Client(place, no_delay=True, default_noreply=False, **options)


# ---- P1 to P5s ----


def store(client, count, size=100):
    values = {key_of(i): value_of(i, size) for i in range(count)}
    check(client.set_many(values) == [], "set_many")
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
        check(client.get_many(keys) == values, "get_many")
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
    client = connect(host, port)
    values = store(client, KEYS)
    last = key_of(KEYS - 1)

    def turn():
        client.set_many(values, noreply=True)
        return KEYS

    return turn, lambda: check(client.get(last) == values[last], "get")


def get_large(host, port):
    client = connect(host, port)
    ((key, value),) = store(client, 1, LARGE).items()

    def turn():
        check_large(client.get(key), value)
        return 1

    return turn


# ---- the rows of Dalli's benchmark ----

KEY_1, KEY_2, KEY_3 = "Short", "Sym1-2-3::45" * 8, "Long" * 40
KEY_4, KEY_5, KEY_6 = "Medium" * 8, "Medium2" * 8, "Long3" * 40
THREE = (KEY_1, KEY_2, KEY_3)
RAW = b"\4\x08[\0"  # what Ruby makes of an empty list
BLOCK = COUNTS = 100


class Rows:
    """A client whose answers are checked, and the rows it plays; a row is a turn."""

    def __init__(self, host, port):
        self.plain = connect(host, port)
        self.client = connect(host, port, serde=serde.pickle_serde)
        self.client.set_many({key: [] for key in THREE})
        self.client.delete_many([KEY_4, KEY_5, KEY_6])

    def set(self, key, **options):
        check(self.client.set(key, [], **options), "set")

    def get(self, key):
        check(self.client.get(key) == [], "get")

    def set_row(self):
        for key in THREE + THREE:
            self.set(key)
        return 6

    def get_row(self):
        for key in THREE + THREE:
            self.get(key)
        return 6

    def set_raw(self):
        for key in THREE + THREE:
            check(self.plain.set(key, RAW), "set")
        return 6

    def get_raw(self):
        for key in THREE + THREE:
            check(self.plain.get(key) == RAW, "get")
        return 6

    def setq(self):
        for _ in range(BLOCK):
            for key in THREE + THREE:
                self.plain.set(key, RAW, noreply=True)
        check(self.plain.version(), "version")
        return 6 * BLOCK

    def multiget(self):
        got = self.client.get_many([KEY_1, KEY_2, KEY_3, KEY_4, KEY_5, KEY_6])
        check(got == {key: [] for key in THREE}, "get_many")
        return 6

    def missing(self):
        for key in THREE:
            check(self.client.delete(key) is False, "delete")
            check(self.client.get(key) is None, "get")
        return 6

    def mixed(self):
        for key in THREE:
            self.set(key)
        for key in THREE:
            self.get(key)
        for key in THREE:
            self.set(key)
            self.get(key)
        return 12

    def mixedq(self):
        for key in THREE:
            self.set(key, noreply=True)
        for key in THREE:
            self.get(key)
        self.set(KEY_1, noreply=True)
        self.get(KEY_1)
        self.set(KEY_2)
        self.client.replace(KEY_2, [], noreply=True)
        self.client.delete(KEY_3, noreply=True)
        self.client.add(KEY_3, [], noreply=True)
        self.get(KEY_2)
        self.set(KEY_3, noreply=True)
        self.get(KEY_3)
        return 15

    def incr(self):
        for count in range(1, COUNTS + 1):
            check(self.plain.incr("foocount", 1) == count, "incr")
        for count in range(COUNTS - 1, -1, -1):
            check(self.plain.decr("foocount", 1) == count, "decr")
        return 2 * COUNTS


def row(turn, prepare=lambda rows: None):
    def make(host, port):
        rows = Rows(host, port)
        prepare(rows)
        return lambda: turn(rows)

    return make


contender.run(
    {
        "P1": get_one,
        "P3": get_many,
        "P4a": set_one,
        "P4b": set_many,
        "P5s": get_large,
        "D-set": row(Rows.set_row),
        "D-get": row(Rows.get_row),
        "D-set-raw": row(Rows.set_raw),
        "D-get-raw": row(Rows.get_raw, Rows.set_raw),
        "D-setq": row(Rows.setq),
        "D-multiget": row(Rows.multiget),
        "D-missing": row(Rows.missing, lambda rows: rows.client.delete_many(THREE)),
        "D-mixed": row(Rows.mixed),
        "D-mixedq": row(Rows.mixedq),
        "D-incr": row(Rows.incr, lambda rows: rows.plain.set("foocount", b"0")),
    }
)
