-- The system calls that specs and their helper processes need, by FFI. Linux only.
-- Nothing here knows moonjay; the fakes use it in a plain luajit.

local bit = require "bit"
local ffi = require "ffi"

local M = {}

if not pcall(ffi.typeof, "struct spec_pollfd") then
  ffi.cdef [[
    struct spec_pollfd { int fd; short events; short revents; };
    struct spec_timespec { long sec; long nsec; };
    struct spec_linger { int on; int seconds; };
    struct spec_in { uint16_t family; uint16_t port; uint8_t address[4]; uint8_t zero[8]; };
    struct spec_in6 {
      uint16_t family; uint16_t port; uint32_t flow; uint8_t address[16]; uint32_t scope;
    };
    struct spec_un { uint16_t family; char path[108]; };
    union spec_actions { char room[256]; long align; };

    int poll(struct spec_pollfd *, unsigned long, int);
    int clock_gettime(int, struct spec_timespec *);
    int nanosleep(const struct spec_timespec *, struct spec_timespec *);
    ssize_t read(int, void *, size_t);
    ssize_t write(int, const void *, size_t);
    int close(int);
    int pipe2(int *, int);
    int fcntl(int, int, ...);
    int kill(int, int);
    int waitpid(int, int *, int);
    int getpid(void);
    unsigned geteuid(void);
    int access(const char *, int);
    int unlink(const char *);
    int rmdir(const char *);
    char *mkdtemp(char *);
    extern char **environ;

    int posix_spawnp(int *, const char *, const void *, const void *, char *const *,
                     char *const *);
    int posix_spawn_file_actions_init(void *);
    int posix_spawn_file_actions_destroy(void *);
    int posix_spawn_file_actions_adddup2(void *, int, int);
    int posix_spawn_file_actions_addopen(void *, int, const char *, int, unsigned);
    int posix_spawn_file_actions_addclosefrom_np(void *, int);

    int socket(int, int, int);
    int bind(int, const void *, unsigned);
    int listen(int, int);
    int connect(int, const void *, unsigned);
    int accept4(int, void *, unsigned *, int);
    int inet_pton(int, const char *, void *);
    int getsockname(int, void *, unsigned *);
    int setsockopt(int, int, int, const void *, unsigned);
    int getsockopt(int, int, int, void *, unsigned *);
    int shutdown(int, int);
    ssize_t recv(int, void *, size_t, int);
    ssize_t send(int, const void *, size_t, int);
    ssize_t recvfrom(int, void *, size_t, int, void *, unsigned *);
    ssize_t sendto(int, const void *, size_t, int, const void *, unsigned);
    char *strerror(int);
  ]]
end

local C = ffi.C

M.EINTR, M.EAGAIN, M.EPIPE, M.ECONNRESET, M.EINPROGRESS = 4, 11, 32, 104, 115
M.POLLIN, M.POLLOUT = 1, 4
M.SIGINT, M.SIGKILL, M.SIGTERM, M.SIGCONT, M.SIGSTOP = 2, 9, 15, 18, 19
M.SOL_SOCKET, M.IPPROTO_TCP = 1, 6
M.SO_REUSEADDR, M.SO_SNDBUF, M.SO_RCVBUF, M.SO_KEEPALIVE, M.SO_LINGER = 2, 7, 8, 9, 13
M.TCP_NODELAY, M.TCP_KEEPIDLE = 1, 4

local AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
local SOCK_STREAM, SOCK_DGRAM = 1, 2
local NONBLOCK_CLOEXEC = 0x800 + 0x80000
local CLOEXEC = 0x80000
local MSG_NOSIGNAL = 0x4000
local MONOTONIC, PROCESS_CPU = 1, 2

local function failed(what)
  local code = ffi.errno()
  return nil, ("%s: %s"):format(what, ffi.string(C.strerror(code))), code
end

-- ---------------------------------------------------------------------- time

local function read_clock(clock)
  local spec = ffi.new("struct spec_timespec")
  C.clock_gettime(clock, spec)
  return tonumber(spec.sec) + tonumber(spec.nsec) / 1e9
end

-- Monotonic seconds.
function M.now() return read_clock(MONOTONIC) end

-- Seconds that this process has run.
function M.cpu() return read_clock(PROCESS_CPU) end

-- Blocks the whole thread: only for plain luajit, or where no task can wait.
function M.sleep(seconds)
  local spec = ffi.new("struct spec_timespec")
  spec.sec = math.floor(seconds)
  spec.nsec = math.floor((seconds % 1) * 1e9)
  C.nanosleep(spec, nil)
end

-- Waits until one of { { fd, events }, ... } is ready. Returns { [fd] = revents }.
function M.poll(list, seconds)
  local fds = ffi.new("struct spec_pollfd[?]", #list + 1)
  for i, entry in ipairs(list) do
    fds[i - 1].fd, fds[i - 1].events = entry[1], entry[2]
  end
  C.poll(fds, #list, math.max(0, math.ceil(seconds * 1000)))
  local ready = {}
  for i = 0, #list - 1 do
    if fds[i].revents ~= 0 then ready[fds[i].fd] = fds[i].revents end
  end
  return ready
end

-- ----------------------------------------------------------------- descriptors

function M.close(fd)
  C.close(fd)
end

local CHUNK = 65536
local room = ffi.new("uint8_t[?]", CHUNK)

local function taken(count, what)
  count = tonumber(count)
  if count >= 0 then return ffi.string(room, count) end
  return failed(what)
end

-- Up to 64 KiB; "" at the end; nil, reason, errno.
function M.read(fd)
  return taken(C.read(fd, room, CHUNK), "read")
end

function M.recv(fd)
  return taken(C.recv(fd, room, CHUNK, 0), "recv")
end

-- Sends what goes out now, of data from offset `from` (0 is its first byte), at most 64 KiB.
-- Bytes taken, or nil, reason, errno.
function M.send(fd, data, from)
  local pointer = ffi.cast("const char *", data)
  local size = math.min(CHUNK, #data - from)
  local count = tonumber(C.send(fd, pointer + from, size, MSG_NOSIGNAL))
  if count >= 0 then return count end
  return failed("send")
end

function M.write(fd, data)
  local count = tonumber(C.write(fd, data, #data))
  if count >= 0 then return count end
  return failed("write")
end

-- A pipe, both ends closed on exec: read end, write end.
function M.pipe()
  local ends = ffi.new("int[2]")
  assert(C.pipe2(ends, CLOEXEC) == 0)
  return ends[0], ends[1]
end

function M.nonblocking(fd)
  C.fcntl(fd, 4, ffi.cast("int", 0x800))
end

-- --------------------------------------------------------------------- sockets

-- host: an address, of IPv6 where it has a colon; 127.0.0.1 by default.
local function inet_address(port, host)
  host = host or "127.0.0.1"
  local sixth = host:find(":", 1, true) ~= nil
  local address = ffi.new(sixth and "struct spec_in6" or "struct spec_in")
  address.family = sixth and AF_INET6 or AF_INET
  address.port = bit.bor(bit.lshift(bit.band(port, 255), 8), bit.rshift(port, 8))
  assert(C.inet_pton(address.family, host, address.address) == 1, host)
  return address
end

local function unix_address(path)
  assert(#path < 108, "unix socket path is too long")
  local address = ffi.new("struct spec_un")
  address.family = AF_UNIX
  ffi.copy(address.path, path)
  return address
end

local function set_int(fd, level, name, value)
  C.setsockopt(fd, level, name, ffi.new("int[1]", value), 4)
end
M.setsockopt = set_int

function M.getsockopt(fd, level, name)
  local value, size = ffi.new("int[1]"), ffi.new("unsigned[1]", 4)
  if C.getsockopt(fd, level, name, value, size) ~= 0 then return failed("getsockopt") end
  return value[0]
end

-- Listens on loopback. options: host, port (0: any free one), backlog, rcvbuf, or unix (a
-- path). The descriptor and the port, or nil, reason.
function M.listen(options)
  local unix = options.unix
  local address = unix and unix_address(unix) or inet_address(options.port or 0, options.host)
  local fd = C.socket(address.family, SOCK_STREAM + NONBLOCK_CLOEXEC, 0)
  if not unix then set_int(fd, M.SOL_SOCKET, M.SO_REUSEADDR, 1) end
  if options.rcvbuf then set_int(fd, M.SOL_SOCKET, M.SO_RCVBUF, options.rcvbuf) end
  if C.bind(fd, address, ffi.sizeof(address)) ~= 0
    or C.listen(fd, options.backlog or 16) ~= 0 then
    local _, reason = failed(unix or "listen")
    C.close(fd)
    return nil, reason
  end
  return fd, not unix and M.local_port(fd) or nil
end

function M.local_port(fd)
  local address, size = ffi.new("struct spec_in"), ffi.new("unsigned[1]", 16)
  C.getsockname(fd, address, size)
  return bit.bor(bit.lshift(bit.band(address.port, 255), 8), bit.rshift(address.port, 8))
end

-- The next connection, nonblocking; nil if none waits.
function M.accept(fd)
  local got = C.accept4(fd, nil, nil, NONBLOCK_CLOEXEC)
  if got < 0 then return failed("accept") end
  return got
end

-- Starts to connect: the descriptor. options: port and host, or unix.
function M.connect(options)
  local address = options.unix and unix_address(options.unix)
    or inet_address(options.port, options.host)
  local fd = C.socket(address.family, SOCK_STREAM + NONBLOCK_CLOEXEC, 0)
  if C.connect(fd, address, ffi.sizeof(address)) ~= 0 and ffi.errno() ~= M.EINPROGRESS then
    local _, reason, code = failed("connect")
    C.close(fd)
    return nil, reason, code
  end
  return fd
end

-- A UDP socket that is bound there.
function M.datagrams(host, port)
  local address = inet_address(port, host)
  local fd = C.socket(address.family, SOCK_DGRAM + NONBLOCK_CLOEXEC, 0)
  if C.bind(fd, address, ffi.sizeof(address)) ~= 0 then return failed("bind") end
  return fd
end

-- The next datagram, and where it came from; nil if none waits.
function M.recv_from(fd)
  local from, size = ffi.new("struct spec_in6"), ffi.new("unsigned[1]", 28)
  local data, reason = taken(C.recvfrom(fd, room, CHUNK, 0, from, size), "recvfrom")
  if not data then return nil, reason end
  return data, { address = from, size = size[0] }
end

function M.send_to(fd, data, to)
  C.sendto(fd, data, #data, MSG_NOSIGNAL, to.address, to.size)
end

-- The bytes of an address, of IPv6 where it has a colon.
function M.address_bytes(host)
  local address = inet_address(0, host)
  return ffi.string(address.address, ffi.sizeof(address.address))
end

function M.shutdown_write(fd)
  C.shutdown(fd, 1)
end

-- Makes close() send a reset.
function M.linger_zero(fd)
  local linger = ffi.new("struct spec_linger", 1, 0)
  C.setsockopt(fd, M.SOL_SOCKET, M.SO_LINGER, linger, ffi.sizeof(linger))
end

-- ------------------------------------------------------------------- processes

M.getpid = function() return C.getpid() end
M.is_root = function() return C.geteuid() == 0 end
M.kill = function(pid, signal) return C.kill(pid, signal) == 0 end

-- Starts argv (found on PATH). files: { [0] = fd or path, [1] = fd, [2] = fd }; what is not
-- given is shared with us, every other descriptor is closed. The pid, or nil, reason.
function M.spawn(argv, files)
  local actions = ffi.new("union spec_actions")
  C.posix_spawn_file_actions_init(actions)
  for to = 0, 2 do
    local from = files[to]
    if type(from) == "string" then
      C.posix_spawn_file_actions_addopen(actions, to, from, to == 0 and 0 or 1, 0)
    elseif from then
      C.posix_spawn_file_actions_adddup2(actions, from, to)
    end
  end
  C.posix_spawn_file_actions_addclosefrom_np(actions, 3)
  local args = ffi.new("char *[?]", #argv + 1)
  local keep = {}
  for i, word in ipairs(argv) do
    keep[i] = ffi.new("char[?]", #word + 1, word)
    args[i - 1] = keep[i]
  end
  local pid = ffi.new("int[1]")
  local code = C.posix_spawnp(pid, argv[1], actions, nil, args, C.environ)
  C.posix_spawn_file_actions_destroy(actions)
  if code ~= 0 then return nil, ("%s: %s"):format(argv[1], ffi.string(C.strerror(code))) end
  return pid[0]
end

-- Reaps without waiting: nil while it runs, else its exit status (128 + n: ended by a signal).
function M.reap(pid)
  local status = ffi.new("int[1]")
  if C.waitpid(pid, status, 1) ~= pid then return nil end
  local signal = bit.band(status[0], 127)
  if signal ~= 0 then return 128 + signal end
  return bit.band(bit.rshift(status[0], 8), 255)
end

-- A new directory for sockets and files, mode 0700.
function M.make_directory()
  local parent = (os.getenv("TMPDIR") or "/tmp"):sub(1, 40)
  local name = ffi.new("char[64]", parent .. "/moonjay-XXXXXX")
  assert(C.mkdtemp(name) ~= nil, "no temporary directory")
  return ffi.string(name)
end

-- The whole text of a file, also of one in /proc; nil if it cannot be read.
function M.read_file(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

function M.exists(path)
  return C.access(path, 0) == 0
end

M.remove_directory = function(path) C.rmdir(path) end
M.remove_file = function(path) C.unlink(path) end

return M
