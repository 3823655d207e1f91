# cython: language_level=3, binding=False, boundscheck=False, wraparound=False
"""`headrace.syscalls` of the compiled build, which says what each function does.

What mypyc cannot express is when the interpreter lock is held. Python's own calls let go of it around every one of them:
around those that never wait this costs as much as the rest of the call, and a context switch when the journal's thread
wants it; between a write and its sync there is nothing to do in Python, and yet it would be taken there. And a thread that
waits for the lock beside a loop that never sleeps, but lets go of it for an instant many times a millisecond, may wait for
hundreds of milliseconds: so the thread of a `Syncer` never asks for it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, EINVAL, errno
from libc.stdint cimport int32_t, uint32_t

import os

cdef extern from "sys/socket.h" nogil:
    ssize_t recv(int fd, void *into, size_t size, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int epoll, epoll_event *events, int count, int timeout)

cdef extern from "sys/uio.h" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev(int fd, const iovec *parts, int count, long long position)

cdef extern from "unistd.h" nogil:
    int fdatasync(int fd)
    int close(int fd)

cdef extern from "time.h" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *now)
    int CLOCK_MONOTONIC

cdef extern from "fcntl.h" nogil:
    int posix_fallocate(int fd, long long position, long long length)

cdef extern from "semaphore.h" nogil:
    ctypedef struct sem_t:
        pass
    int sem_init(sem_t *semaphore, int shared, unsigned int value)
    int sem_destroy(sem_t *semaphore)
    int sem_post(sem_t *semaphore)
    int sem_wait(sem_t *semaphore)
    int sem_trywait(sem_t *semaphore)

cdef extern from "sys/eventfd.h" nogil:
    ctypedef unsigned long long eventfd_t
    int eventfd(unsigned int count, int flags)
    int eventfd_write(int fd, eventfd_t value)
    int EFD_CLOEXEC, EFD_NONBLOCK

cdef enum:
    _READ_BYTES_MAX = 65536
    _READY_MAX = 256
    _BUFFERS_MAX = 1024  # IOV_MAX of Linux
    _SLICE_NS = 100000  # the least there is: who asks for little comes soon, before a loop that never sleeps

READ_BYTES_MAX = _READ_BYTES_MAX
READY_MAX = _READY_MAX

# Used under the interpreter lock only.
cdef char received[_READ_BYTES_MAX]
cdef epoll_event events[_READY_MAX]
cdef int32_t pairs[2 * _READY_MAX]


cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* As in linux/sched/types.h, which not every C library comes with. */
    struct slice { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; };
    static void shorten_slice(uint64_t ns) {
        struct slice found;
        if (syscall(SYS_sched_getattr, 0, &found, sizeof found, 0) == 0) {
            found.runtime = ns;
            syscall(SYS_sched_setattr, 0, &found, 0);
        }
    }
    """
    void shorten_slice(unsigned long long ns) nogil


cdef object failure(int code):
    return OSError(code, os.strerror(code))


def read(int fd):
    cdef ssize_t count = recv(fd, received, _READ_BYTES_MAX, MSG_DONTWAIT)
    if count >= 0:
        return PyBytes_FromStringAndSize(received, count)
    if errno == EAGAIN or errno == EINTR:
        return None
    raise failure(errno)


cdef ssize_t send_view(int fd, const unsigned char[::1] data, int *code) except? -2:
    """`code` is the error number, read before the view is let go: freeing may set another."""
    cdef ssize_t count
    if data.shape[0] == 0:
        return 0
    count = send(fd, &data[0], <size_t>data.shape[0], MSG_DONTWAIT | MSG_NOSIGNAL)
    code[0] = errno
    return count


def write(int fd, data not None):
    cdef ssize_t count
    cdef int code = 0
    if type(data) is bytes:  # nearly always; a view of it would cost more than the rest
        count = send(fd, PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
        if count < 0:
            code = errno
    else:
        count = send_view(fd, data, &code)
    if count >= 0:
        return count
    if code == EAGAIN or code == EINTR:
        return 0
    raise failure(code)


def ready(epoll not None):
    cdef int count = epoll_wait(epoll.fileno(), events, _READY_MAX, 0)
    cdef int i, code
    if count < 0:
        code = errno
        if code == EINTR:
            return b""
        raise failure(code)
    for i in range(count):
        pairs[2 * i] = events[i].data.fd
        pairs[2 * i + 1] = <int32_t>events[i].events
    return PyBytes_FromStringAndSize(<char *>pairs, count * 2 * sizeof(int32_t))


cdef struct Job:
    int fd
    iovec *parts
    int count
    ssize_t wanted
    long long position
    ssize_t written  # the outcome: bytes, or -1
    int error  # the number of the error of the write
    int failed  # the number of the error of the sync


cdef int fill(Job *job, tuple buffers) except -1:
    """The buffers of a job, which has room for `_BUFFERS_MAX`; whoever calls keeps them until the job is done."""
    cdef int i
    cdef bytes part
    if len(buffers) > _BUFFERS_MAX:
        raise failure(EINVAL)  # as pwritev has it
    job.count = <int>len(buffers)
    job.wanted = 0
    for i in range(job.count):
        part = buffers[i]
        job.parts[i].iov_base = PyBytes_AS_STRING(part)
        job.parts[i].iov_len = <size_t>PyBytes_GET_SIZE(part)
        job.wanted += PyBytes_GET_SIZE(part)
    return 0


cdef long long monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1000000000 + now.tv_nsec


cdef void execute(Job *job) noexcept nogil:
    job.error = job.failed = 0
    job.written = pwritev(job.fd, job.parts, job.count, job.position)
    while job.written < 0 and errno == EINTR:
        job.written = pwritev(job.fd, job.parts, job.count, job.position)
    if job.written < 0:
        job.error = errno
    elif job.written == job.wanted:
        while fdatasync(job.fd) < 0:
            job.failed = errno
            if job.failed != EINTR:
                break
            job.failed = 0


cdef object outcome(Job *job):
    if job.error:
        raise failure(job.error)
    return -job.failed if job.failed else job.written


def write_and_sync(int fd, buffers, long long position):
    cdef iovec parts[_BUFFERS_MAX]
    cdef Job job
    cdef tuple held = tuple(buffers)  # so that nobody frees them while the lock is let go
    job.fd = fd
    job.parts = parts
    job.position = position
    fill(&job, held)
    with nogil:
        execute(&job)
    return outcome(&job)


cdef class Syncer:
    cdef readonly int fd
    cdef sem_t begun, done
    cdef iovec parts[_BUFFERS_MAX]
    cdef Job job
    cdef tuple held
    cdef long long allocated, growth
    cdef int index_fd
    cdef bytes entries
    cdef iovec index
    cdef long long index_position
    cdef readonly long long took_ns
    cdef bint stopping

    def __cinit__(self):
        self.job.parts = self.parts
        self.stopping = False
        sem_init(&self.begun, 0, 0)
        sem_init(&self.done, 0, 0)
        self.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.fd < 0:
            raise failure(errno)

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        sem_destroy(&self.begun)
        sem_destroy(&self.done)

    def serve(self):
        with nogil:
            shorten_slice(_SLICE_NS)
            while True:
                while sem_wait(&self.begun) < 0:
                    pass  # EINTR
                if self.stopping:
                    break
                self.job.written = -1
                self.job.error = self.job.failed = 0
                if self.growth:
                    self.job.error = posix_fallocate(self.job.fd, self.allocated, self.growth)
                    while self.job.error == EINTR:  # it may have got some of the blocks
                        self.job.error = posix_fallocate(self.job.fd, self.allocated, self.growth)
                if not self.job.error:
                    self.took_ns = -monotonic_ns()
                    execute(&self.job)
                    self.took_ns += monotonic_ns()
                if self.job.written == self.job.wanted and not self.job.failed and self.index.iov_len:
                    pwritev(self.index_fd, &self.index, 1, self.index_position)
                sem_post(&self.done)
                eventfd_write(self.fd, 1)

    def begin(
        self, int fd, buffers, long long position, long long allocated, long long growth,
        int index_fd, bytes entries, long long index_position,
    ):
        cdef tuple held = tuple(buffers)
        fill(&self.job, held)
        self.held = held  # until the next one
        self.job.fd = fd
        self.job.position = position
        self.allocated = allocated
        self.growth = growth
        self.index_fd = index_fd
        self.entries = entries
        self.index.iov_base = PyBytes_AS_STRING(entries)
        self.index.iov_len = <size_t>PyBytes_GET_SIZE(entries)
        self.index_position = index_position
        sem_post(&self.begun)

    def result(self):
        if sem_trywait(&self.done) < 0:
            return None
        return outcome(&self.job)

    def wait(self):
        cdef int code
        with nogil:
            code = sem_wait(&self.done)
            while code < 0:
                code = sem_wait(&self.done)
            sem_post(&self.done)

    def stop(self):
        self.stopping = True
        sem_post(&self.begun)
