"""Restrict which system calls this process may still make, by a filter that the kernel runs before each.

Knows numbers of calls and the filter's instructions (see seccomp(2)). Knows nothing of programs. A list of what is allowed, not
of what is forbidden: a call that a later kernel brings is forbidden until it is named here. Standard library only.
"""

import ctypes
import errno
import os
import platform
import struct

# Name, number on x86-64, number on 64-bit ARM. What computing takes: memory, open files, clocks, signals to oneself.
_CALLS = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -, lseek 8 62, mmap 9 222,
mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, ioctl 16 29,
pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124,
mremap 25 216, mincore 27 232, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101, getitimer 36 102,
alarm 37 -, setitimer 38 103, getpid 39 172, exit 60 93, kill 62 129, uname 63 160, fcntl 72 25, getdents 78 -,
getcwd 79 17, chdir 80 49, fchdir 81 50, readlink 89 -, umask 95 166, gettimeofday 96 169, getrlimit 97 163,
getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177,
getppid 110 173, getpgrp 111 -, getgroups 115 158, getresuid 118 148, getresgid 120 150, getpgid 121 155, getsid 124 156,
rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133, sigaltstack 131 132, statfs 137 43, fstatfs 138 44,
setrlimit 160 164, gettid 186 178, time 201 -, futex 202 98, sched_getaffinity 204 123, getdents64 217 61,
set_tid_address 218 96, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94,
epoll_wait 232 -, epoll_ctl 233 21, tgkill 234 131, openat 257 56, newfstatat 262 79, readlinkat 267 78, faccessat 269 48,
pselect6 270 72, ppoll 271 73, set_robust_list 273 99, epoll_pwait 281 22, eventfd2 290 19, epoll_create1 291 20,
dup3 292 24, pipe2 293 59, prlimit64 302 261, getcpu 309 168, getrandom 318 278, membarrier 324 283, statx 332 291,
rseq 334 293, faccessat2 439 439
"""
_CLONE3 = 435
_MACHINES = {
    "x86_64": (1, 0xC000003E),
    "aarch64": (2, 0xC00000B7),
}  # column above, the kernel's name of the architecture

_FCNTL = (0, 1, 2, 3, 4, 1030)  # duplicate, flags; but not F_SETOWN and F_SETSIG, which send signals to other processes
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, how large, bytes to read, flags
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, and the bit that separates O_TMPFILE from O_DIRECTORY
TRUNCATE, WRITE = 0o1000, 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000

_LOAD, _EQUALS, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_KILL, _ALLOW, _REFUSE = 0x80000000, 0x7FFF0000, 0x00050000
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
_PR_SET_SECCOMP, _FILTER = 22, 2


class UnknownMachineError(OSError):
    """Report that the machine's system calls are not in the table above."""


def restrict_calls(*, no_open_with: int) -> None:
    """Forbid, from here on, to make a process or thread, a connection or a signal to another process, or to run another
    program.

    Such a call fails with EPERM. Can't be undone. Asks for no_new_privs, and for a process of one thread.

    Args:
        no_open_with: flags of open(2) that it may not have; see `TRUNCATE` and `WRITE`.

    Raises:
        UnknownMachineError: see there.
        OSError: the kernel refuses.
    """
    code = _program(platform.machine(), pid=os.getpid(), no_open_with=no_open_with)
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(instructions)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


Instruction = tuple[int, int, int, int]  # code, how far to jump where it holds, and where not, operand


def _program(machine: str, *, pid: int, no_open_with: int) -> list[Instruction]:
    if machine not in _MACHINES:
        raise UnknownMachineError(
            errno.ENOSYS, f"system calls of {machine} are not known, only {' and '.join(_MACHINES)}'s"
        )
    column, architecture = _MACHINES[machine]
    # Arguments that are C ints: the kernel looks at their lower 32 bits alone, and so does the filter.
    one_of = {"kill": (0, (pid,)), "tgkill": (0, (pid,)), "prlimit64": (0, (0, pid)), "fcntl": (1, _FCNTL)}
    one_of["ioctl"] = (1, _IOCTL)
    no_bits = {"open": (1, no_open_with), "openat": (2, no_open_with)} if no_open_with else {}

    code = [(_LOAD, 0, 0, _MACHINE_AT), (_EQUALS, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, _NUMBER_AT))
    for call in _CALLS.replace("\n", " ").split(","):
        name, *numbers = call.split()
        if numbers[column - 1] == "-":
            continue
        allowed: list[Instruction] = [(_RETURN, 0, 0, _ALLOW)]
        if name in one_of:
            argument, values = one_of[name]
            left = range(len(values), 0, -1)  # how far it is to the last instruction, which allows
            tests = [(_EQUALS, n, 0, value) for n, value in zip(left, values, strict=True)]
            allowed = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), *tests, _refusal(errno.EPERM), *allowed]
        elif name in no_bits:
            argument, bits = no_bits[name]
            test = (_HAS_BITS, 0, 1, bits)
            allowed = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument), test, _refusal(errno.EPERM), *allowed]
        code += [(_EQUALS, 0, len(allowed), int(numbers[column - 1])), *allowed]
    # The C library asks for clone3 first, and for clone, whose flags a filter could read, only where there is no clone3.
    code += [(_EQUALS, 0, 1, _CLONE3), _refusal(errno.ENOSYS), _refusal(errno.EPERM)]
    return code


def _refusal(error: int) -> Instruction:
    return (_RETURN, 0, 0, _REFUSE | error)
