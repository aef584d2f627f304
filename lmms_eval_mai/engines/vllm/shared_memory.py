"""Sends objects to another process and passes large buffers as shared memory, so that megabytes are not copied through
a socket.

The memory has no name (`memfd`, Linux only). So nothing is left behind when a process is killed: the system frees the
memory with the last process that uses it. The size of /dev/shm, 64 MB in many containers, is no limit for it.
"""

import errno
import io
import os
import pickle
import resource
import socket
from collections.abc import Callable
from typing import Any

import torch

MIN_BYTES = 1 << 15
"""Smaller buffers are part of the message."""
MAX_BUFFERS = 200
"""Buffers per message in shared memory. Linux passes at most 253 descriptors with a message."""
FREE_DESCRIPTORS = 100
"""File descriptors that copies for later messages leave free."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets for `send` and `receive`."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class SpareMemory:
    """Memory of messages that were answered, for later messages. New memory must be cleared by the system, which takes
    five times as long as to write an image into used memory."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def take(self) -> int:
        return self._descriptors.pop() if self._descriptors else os.memfd_create("lmms-eval-mai")

    def put(self, descriptors: list[int]) -> None:
        # The first of a message is taken first again: it has an image, and the last one only the rest of the message.
        self._descriptors += reversed(descriptors)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def send(channel: socket.socket, value: Any, spare: SpareMemory | None = None) -> list[int]:
    """Send an object. Raises `OSError` if the other process has ended.

    With `spare`, the memory of the message is returned. Put it back when the other process has answered.
    """
    file = io.BytesIO()
    own = SpareMemory()
    pickler = _Pickler(file, spare or own)
    try:
        pickler.dump(value)
        body = pickler.new_memory(file.getbuffer())
        socket.send_fds(channel, [b"m"], [body, *pickler.descriptors])
    except BaseException:
        own.put(pickler.new)
        own.close()
        raise
    if spare is not None:
        return pickler.new
    own.put(pickler.new)
    own.close()
    return []


def receive(channel: socket.socket) -> Any:
    """Return the next object. Its large tensors and arrays use the shared memory; writing to them changes only this
    process's copy. Raises `EOFError` or `OSError` if the other process has ended."""
    data, descriptors, flags, _ = socket.recv_fds(channel, 1, MAX_BUFFERS + 1, socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError("The other process has ended.")
    try:
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "This process has no file descriptors left for a message")
        body, *buffers = [_mapped(descriptor, shared=False) for descriptor in descriptors]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return pickle.loads(body.numpy().tobytes(), buffers=[buffer.numpy() for buffer in buffers])


def shared_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that `send` passes on without copying it again. Small tensors and such copies are returned as they
    are.

    A copy holds one file descriptor. If the process has few descriptors left, the tensor is returned as it is.
    """
    if tensor.nbytes < MIN_BYTES or hasattr(tensor, "_shared_memory"):
        return tensor
    try:
        memory = _Memory(_bytes_of(tensor))
    except OSError:
        return tensor
    if memory.descriptor >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FREE_DESCRIPTORS:
        return tensor
    copy = _mapped(memory.descriptor, shared=True).view(tensor.dtype).reshape(tensor.shape)
    copy._shared_memory = memory  # type: ignore[attr-defined]
    return copy


class _Memory:
    """Memory without a name, which exists until no process uses it."""

    def __init__(self, content: Any) -> None:
        self.descriptor = os.memfd_create("lmms-eval-mai")
        _write(self.descriptor, content)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at exit, the module may be empty
        if hasattr(self, "descriptor"):
            close(self.descriptor)


class _Pickler(pickle.Pickler):
    """Puts large buffers of arrays and tensors into shared memory. `descriptors` lists them in the order of the
    pickle."""

    def __init__(self, file: io.BytesIO, spare: SpareMemory) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._place)
        self.descriptors: list[int] = []
        self.new: list[int] = []
        self._spare = spare
        self._shared: int | None = None

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        # The pickler calls `_place` for this buffer before it continues with the next object.
        self._shared = memory.descriptor if (memory := getattr(value, "_shared_memory", None)) else None
        return _tensor, (pickle.PickleBuffer(_bytes_of(value)), value.dtype, value.shape)

    def _place(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether the buffer becomes part of the message."""
        shared, self._shared = self._shared, None
        raw = buffer.raw()
        if raw.nbytes < MIN_BYTES or len(self.descriptors) == MAX_BUFFERS:
            return True
        self.descriptors.append(self.new_memory(raw) if shared is None else shared)
        return False

    def new_memory(self, content: Any) -> int:
        """Return the descriptor of memory with this content."""
        self.new.append(self._spare.take())
        _write(self.new[-1], content)
        return self.new[-1]


def _write(descriptor: int, content: Any) -> None:
    view = memoryview(content).cast("B")
    os.ftruncate(descriptor, view.nbytes)
    written = 0
    while written < view.nbytes:
        written += os.pwrite(descriptor, view[written:], written)


def _mapped(descriptor: int, shared: bool) -> torch.Tensor:
    """Return the memory as bytes. Python's `mmap` would keep a file descriptor for each."""
    size = os.fstat(descriptor).st_size
    return torch.from_file(f"/proc/self/fd/{descriptor}", shared=shared, size=size, dtype=torch.uint8)


def _bytes_of(tensor: torch.Tensor) -> Any:
    """Return the tensor's memory as an array of bytes, without a copy if the tensor is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _tensor(buffer: Any, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    if isinstance(buffer, bytes | bytearray):
        buffer = bytearray(buffer)  # a tensor needs memory that can be written
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)
