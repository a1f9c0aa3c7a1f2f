"""A hostile program that tries every way out of the sandbox, and prints which of them it got through."""

# Each of these must be refused by the kernel, so an OSError or what Python makes of one; no attempt would do lasting harm.
ESCAPES = r"""
import ctypes, fcntl, mmap, multiprocessing, os, pathlib, resource, signal, socket, subprocess, sys, tempfile, threading
libc, parent, secret = ctypes.CDLL(None, use_errno=True), os.getppid(), SECRET

def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")

def set_owner():
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, parent)

ESCAPES = {
    "fork": os.fork,
    "fork a terminal": os.forkpty,
    "double fork": lambda: os.fork() or os.fork() or os.setsid(),
    "start a program": lambda: subprocess.run(["/bin/true"]),
    "spawn a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "become a program": lambda: os.execv("/bin/true", ["true"]),
    "become a program in memory": lambda: os.memfd_create("program"),
    "start a process pool": lambda: multiprocessing.get_context("fork").Process(target=print).start(),
    "start a thread": lambda: threading.Thread(target=print).start(),
    "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
    "look up a name": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "talk to a daemon": lambda: socket.socket(socket.AF_UNIX),
    "talk to the kernel": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "make a socket pair": socket.socketpair,
    "kill the parent": lambda: os.kill(parent, signal.SIGKILL),
    "kill everything": lambda: os.kill(-1, 0),
    "kill the group": lambda: os.killpg(0, 0),
    "signal the parent later": set_owner,
    "open the parent": lambda: os.pidfd_open(parent),
    "trace the parent": lambda: call(libc.ptrace(16, parent, 0, 0)),
    "read the parent's memory": lambda: call(libc.process_vm_readv(parent, None, 0, None, 0, 0)),
    "limit the parent": lambda: resource.prlimit(parent, resource.RLIMIT_CORE, (0, 0)),
    "slow the parent": lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
    "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2),
    "leave its session": os.setsid,
    "become another": lambda: os.setresuid(1, 1, 1),
    "write a file": lambda: open("file", "w"),
    "write the program": lambda: open("program.py", "a"),
    "write in /tmp": lambda: open("/tmp/setblock-escaped", "w"),
    "write shared memory": lambda: open("/dev/shm/setblock-escaped", "w"),
    "write a nameless file": lambda: os.open("/tmp", os.O_TMPFILE | os.O_RDWR),
    "write the secret": lambda: open(secret, "a"),
    "truncate the secret": lambda: os.open(secret, os.O_RDONLY | os.O_TRUNC),
    "truncate the secret by name": lambda: os.truncate(secret, 0),
    "remove the secret": lambda: os.remove(secret),
    "rename the secret": lambda: os.rename(secret, secret + "2"),
    "link the secret": lambda: os.link(secret, "secret"),
    "make a link": lambda: os.symlink(secret, "secret"),
    "make the secret public": lambda: os.chmod(secret, 0o777),
    "give the secret away": lambda: os.chown(secret, 1, 1),
    "touch the secret": lambda: os.utime(secret, (0, 0)),
    "make a folder": lambda: os.mkdir("folder"),
    "make a pipe": lambda: os.mkfifo("pipe"),
    "make shared memory": lambda: call(libc.shmget(0, 4096, 0o1600)),
    "make a queue": lambda: call(libc.msgget(0, 0o1600)),
    "mount": lambda: call(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)),
    "change the root": lambda: os.chroot("/tmp"),
    "enter a namespace": lambda: call(libc.unshare(0x10000000)),
    "set the clock": lambda: __import__("time").clock_settime(0, 0),
    "set the host's name": lambda: socket.sethostname("escaped"),
    "keep a key": lambda: call(libc.syscall({"x86_64": 248, "aarch64": 217}[os.uname().machine], b"user", b"k", b"v", 1, -3)),
}
READS = {
    "read the secret": lambda: open(secret).read(),
    "read the secret through /proc": lambda: open("/proc/self/root" + secret).read(),
    "read the folder of the secret": lambda: os.listdir(os.path.dirname(secret)),
    "read the root": lambda: os.listdir("/"),
    "read users": lambda: open("/etc/passwd").read(),
    "read the parent's environment": lambda: open(f"/proc/{parent}/environ", "rb").read(),
    "read the disk": lambda: [open(path, "rb").read(1) for path in ("/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/mem")],
    "read what others left": lambda: os.listdir("/tmp"),
}
if LEVEL == "confined":
    ESCAPES |= READS
for name, escape in ESCAPES.items():
    try:
        escape()
    except (PermissionError, FileNotFoundError, ValueError) as refused:
        assert isinstance(refused, PermissionError) or "disk" in name or "limit" in name, (name, refused)
    except RuntimeError as refused:
        assert "thread" in name and "thread" in str(refused)
    except OSError as refused:
        assert "nameless" in name or "queue" in name or "shared memory" in name, (name, refused)
    else:
        print("escaped:", name, flush=True)
print(len(ESCAPES))
"""
