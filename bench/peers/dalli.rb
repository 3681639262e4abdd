# frozen_string_literal: true

# dalli: Ruby's client, with its defaults: the binary protocol, and a lock around each call.
#
#     ruby dalli.rb WORKLOAD HOST PORT SECONDS
#
# Warms up for a tenth of SECONDS, measures for SECONDS, and prints one line of JSON. P1 to P5s
# store and get bytes (`raw`). The rows D-... are those of Dalli's own test/benchmark_test.rb,
# each turn a turn of the loop there, except that there is one server, not one by two names, and
# that D-setq, one long block there, ends its block every 600 commands. Every answer is checked.
#
# Exit status: 0 well, 1 an error or a wrong answer, 2 bad arguments, 3 no such workload.

require 'dalli'
require 'json'
require 'timeout'

PATIENCE = 10 # seconds, beside those that it was to take
KEYS = 100
LARGE = 1 << 20

def key_of(index)
  format('bench:%05d', index)
end

# Begins and ends with its key.
def value_of(index, size = 100)
  key = key_of(index)
  "#{key}#{'.' * (size - (2 * key.bytesize))}#{key}"
end

def check(fine, what)
  raise "#{what}: a wrong answer" unless fine
end

def connect(host, port, **options)
  place = host.start_with?('/') ? host : "#{host}:#{port}"
  Dalli::Client.new(place, options)
end

# ---- P1 to P5s: what prepares, and gives a turn, which gives how many operations it was ----

RAW = { raw: true }.freeze

def store(client, count, size = 100)
  values = (0...count).to_h { |i| [key_of(i), value_of(i, size)] }
  values.each { |key, value| check(client.set(key, value, 0, RAW), 'set') }
end

def get_one(client)
  key, value = store(client, 1).first
  lambda do
    check(client.get(key, RAW) == value, 'get')
    1
  end
end

# Values that were stored raw come back as they were, with and without `raw`.
def get_many(client)
  values = store(client, KEYS)
  keys = values.keys
  lambda do
    check(client.get_multi(keys) == values, 'get_multi')
    KEYS
  end
end

def set_one(client)
  key, value = store(client, 1).first
  lambda do
    check(client.set(key, value, 0, RAW), 'set')
    1
  end
end

# A block ends when the server has answered what is behind the last set.
def set_many(client)
  values = store(client, KEYS)
  lambda do
    client.multi { values.each { |key, value| client.set(key, value, 0, RAW) } }
    KEYS
  end
end

# Looks at size and ends: comparing all of it would cost more than getting it.
def get_large(client)
  key, = store(client, 1, LARGE).first
  lambda do
    value = client.get(key, RAW)
    check(value.bytesize == LARGE && value.start_with?(key) && value.end_with?(key), 'get')
    1
  end
end

# ---- the rows of Dalli's benchmark ----

KEY1 = 'Short'
KEY2 = 'Sym1-2-3::45' * 8
KEY3 = 'Long' * 40
KEY4 = 'Medium' * 8
KEY5 = 'Medium2' * 8
KEY6 = 'Long3' * 40
THREE = [KEY1, KEY2, KEY3].freeze
VALUE = [].freeze
MARSHALLED = Marshal.dump(VALUE).freeze
BLOCK = 100
COUNTS = 100

# A client whose answers are checked, and the rows it plays.
class Rows
  def initialize(client)
    @m = client
    THREE.each { |key| set(key) }
    [KEY4, KEY5, KEY6].each { |key| @m.delete(key) }
  end

  def set(key)
    check(@m.set(key, VALUE), 'set')
  end

  def get(key)
    check(@m.get(key) == VALUE, 'get')
  end

  def set_row
    THREE.each { |key| set(key) }
    THREE.each { |key| set(key) }
    6
  end

  def get_row
    THREE.each { |key| get(key) }
    THREE.each { |key| get(key) }
    6
  end

  def set_raw
    2.times { THREE.each { |key| check(@m.set(key, MARSHALLED, 0, RAW), 'set') } }
    6
  end

  def get_raw
    2.times { THREE.each { |key| check(@m.get(key, RAW) == MARSHALLED, 'get') } }
    6
  end

  def setq
    @m.multi do
      BLOCK.times { 2.times { THREE.each { |key| @m.set(key, MARSHALLED, 0, RAW) } } }
    end
    6 * BLOCK
  end

  def multiget
    got = @m.get_multi(KEY1, KEY2, KEY3, KEY4, KEY5, KEY6)
    check(got.size == 3 && THREE.all? { |key| got[key] == VALUE }, 'get_multi')
    6
  end

  def missing
    THREE.each do |key|
      check(!@m.delete(key), 'delete')
      check(@m.get(key).nil?, 'get')
    end
    6
  end

  def mixed
    THREE.each { |key| set(key) }
    THREE.each { |key| get(key) }
    THREE.each do |key|
      set(key)
      get(key)
    end
    12
  end

  def mixedq
    @m.multi { THREE.each { |key| @m.set(key, VALUE) } }
    THREE.each { |key| get(key) }
    @m.multi { @m.set(KEY1, VALUE) }
    get(KEY1)
    set(KEY2)
    @m.multi do
      @m.replace(KEY2, VALUE)
      @m.delete(KEY3)
      @m.add(KEY3, VALUE)
    end
    get(KEY2)
    @m.multi { @m.set(KEY3, VALUE) }
    get(KEY3)
    15
  end

  def incr
    (1..COUNTS).each { |count| check(@m.incr('foocount', 1, 0, 1) == count, 'incr') }
    (COUNTS - 1).downto(0) { |count| check(@m.decr('foocount', 1) == count, 'decr') }
    2 * COUNTS
  end

  def prepare(row)
    case row
    when :get_raw then set_raw
    when :missing then THREE.each { |key| @m.delete(key) }
    when :incr then @m.set('foocount', '0', 0, RAW)
    end
  end
end

def row(client, name)
  rows = Rows.new(client)
  rows.prepare(name)
  rows.method(name)
end

# ---- measuring ----

WORKLOADS = {
  'P1' => :get_one, 'P3' => :get_many, 'P4a' => :set_one, 'P4b' => :set_many,
  'P5s' => :get_large
}.freeze

ROWS = {
  'D-set' => :set_row, 'D-get' => :get_row, 'D-set-raw' => :set_raw, 'D-get-raw' => :get_raw,
  'D-setq' => :setq, 'D-multiget' => :multiget, 'D-missing' => :missing, 'D-mixed' => :mixed,
  'D-mixedq' => :mixedq, 'D-incr' => :incr
}.freeze

# Of large values no part is compressed, here as with everybody else.
def turn_of(workload, host, port)
  return row(connect(host, port), ROWS[workload]) if ROWS[workload]

  method(WORKLOADS[workload]).call(
    connect(host, port, compress: false, value_max_bytes: 2 * LARGE)
  )
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def reading
  times = Process.times
  switches = File.read('/proc/self/status').scan(/voluntary_ctxt_switches:\s*(\d+)/).flatten
  { seconds: now, user: times.utime, system: times.stime,
    voluntary: switches[0].to_i, involuntary: switches[1].to_i }
end

def turns(turn, seconds)
  stop = now + seconds
  operations = 0
  operations += turn.call while now < stop
  operations
end

def measure(workload, host, port, seconds)
  turn = turn_of(workload, host, port)
  warm = turns(turn, seconds / 10)
  before = reading
  operations = turns(turn, seconds)
  after = reading
  between = after.to_h { |name, value| [name, (value - before[name]).round(6)] }
  puts JSON.generate({ workload: workload, operations: operations, calls: nil,
                       answered: warm + operations, **between })
end

workload, host, port, seconds = ARGV
unless ARGV.size == 4 && port.match?(/\A\d+\z/) && seconds.to_f.positive?
  warn 'dalli.rb: it takes WORKLOAD HOST PORT SECONDS'
  exit 2
end
unless WORKLOADS[workload] || ROWS[workload]
  warn "dalli.rb: there is no workload #{workload}"
  exit 3
end
Dalli.logger.level = Logger::FATAL
begin
  Timeout.timeout((seconds.to_f * 1.1) + PATIENCE) do
    measure(workload, host, port, seconds.to_f)
  end
rescue StandardError => e
  warn "dalli.rb: #{e.class}: #{e.message}"
  exit 1
end
