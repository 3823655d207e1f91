# cython: language_level=3, binding=False, boundscheck=False, wraparound=False
"""`headrace.syscalls` of the compiled build, which says what each function does.

What mypyc cannot express is when the interpreter lock is held. Python's own calls let go of it around every one of them:
around those that never wait this costs as much as the rest of the call, and a context switch when the journal's thread
wants it; between a write and its sync there is nothing to do in Python, and yet it would be taken there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
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

cdef enum:
    _READ_BYTES_MAX = 65536
    _READY_MAX = 256
    _BUFFERS_MAX = 1024  # IOV_MAX of Linux

READ_BYTES_MAX = _READ_BYTES_MAX
READY_MAX = _READY_MAX

# Used under the interpreter lock only.
cdef char received[_READ_BYTES_MAX]
cdef epoll_event events[_READY_MAX]
cdef int32_t pairs[2 * _READY_MAX]


cdef object failure(int code):
    return OSError(code, os.strerror(code))


def read(int fd):
    cdef ssize_t count = recv(fd, received, _READ_BYTES_MAX, MSG_DONTWAIT)
    if count >= 0:
        return PyBytes_FromStringAndSize(received, count)
    if errno == EAGAIN or errno == EINTR:
        return None
    raise failure(errno)


cdef ssize_t send_view(int fd, const unsigned char[::1] data) except? -2:
    if data.shape[0] == 0:
        return 0
    return send(fd, &data[0], <size_t>data.shape[0], MSG_DONTWAIT | MSG_NOSIGNAL)


def write(int fd, data not None):
    cdef ssize_t count
    if type(data) is bytes:  # nearly always; a view of it would cost more than the rest
        count = send(fd, PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
    else:
        count = send_view(fd, data)
    if count >= 0:
        return count
    if errno == EAGAIN or errno == EINTR:
        return 0
    raise failure(errno)


def ready(epoll not None):
    cdef int count = epoll_wait(epoll.fileno(), events, _READY_MAX, 0)
    cdef int i
    if count < 0:
        if errno == EINTR:
            return b""
        raise failure(errno)
    for i in range(count):
        pairs[2 * i] = events[i].data.fd
        pairs[2 * i + 1] = <int32_t>events[i].events
    return PyBytes_FromStringAndSize(<char *>pairs, count * 2 * sizeof(int32_t))


def write_and_sync(int fd, buffers, long long position):
    cdef iovec parts[_BUFFERS_MAX]
    cdef tuple held = tuple(buffers)  # so that nobody frees them while the lock is let go
    cdef int count = <int>len(held)
    cdef int i, error = 0, failed = 0
    cdef ssize_t written, wanted = 0
    cdef bytes part
    if len(held) > _BUFFERS_MAX:
        raise failure(22)  # EINVAL, as pwritev has it
    for i in range(count):
        part = held[i]
        parts[i].iov_base = PyBytes_AS_STRING(part)
        parts[i].iov_len = <size_t>PyBytes_GET_SIZE(part)
        wanted += PyBytes_GET_SIZE(part)
    with nogil:
        written = pwritev(fd, parts, count, position)
        while written < 0 and errno == EINTR:
            written = pwritev(fd, parts, count, position)
        if written < 0:
            error = errno
        elif written == wanted:
            while fdatasync(fd) < 0:
                failed = errno
                if failed != EINTR:
                    break
                failed = 0
    if error:
        raise failure(error)
    return -failed if failed else written
